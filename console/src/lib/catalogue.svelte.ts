/** What there is to ask: collections, retrievers and models. */

import type { Model } from "evenmesh/gen/evenmesh/generator/v1/generator_service_pb.js";
import type { Collection } from "evenmesh/gen/evenmesh/retriever/v1/collection_service_pb.js";
import type { Retriever } from "evenmesh/gen/evenmesh/retriever/v1/retriever_service_pb.js";

import { mesh } from "./session.svelte";

class Catalogue {
  collections = $state.raw<Collection[]>([]);
  retrievers = $state.raw<Retriever[]>([]);
  models = $state.raw<Model[]>([]);
  error = $state.raw<unknown>(undefined);

  async read(): Promise<void> {
    this.error = undefined;
    try {
      const [collections, retrievers, models] = await Promise.all([
        mesh.collections.listCollections({}),
        mesh.retriever.listRetrievers({}),
        mesh.generator.listModels({}),
      ]);
      this.collections = collections.collections;
      this.retrievers = retrievers.retrievers;
      this.models = models.models;
    } catch (error) {
      this.error = error;
    }
  }
}

export const catalogue = new Catalogue();
