/** What there is to ask: collections, retrievers and models. */

import type { Model } from "evenmesh/gen/evenmesh/generator/v1/generator_service_pb.js";
import type { Collection } from "evenmesh/gen/evenmesh/retriever/v1/collection_service_pb.js";
import type { Retriever } from "evenmesh/gen/evenmesh/retriever/v1/retriever_service_pb.js";

import { mesh, session } from "./session.svelte";

class Catalogue {
  collections = $state.raw<Collection[]>([]);
  retrievers = $state.raw<Retriever[]>([]);
  models = $state.raw<Model[]>([]);
  error = $state.raw<unknown>(undefined);
  /** The collection that was asked last; empty before an ask. */
  asked = $state("");

  #whose = "";

  async read(): Promise<void> {
    const whose = JSON.stringify([session.identity?.tenant, session.identity?.name]);
    // What another caller may see is not shown, not even until the reply is here.
    if (whose !== this.#whose) [this.collections, this.retrievers, this.models, this.asked] = [[], [], [], ""];
    this.#whose = whose;
    const [collections, retrievers, models] = await Promise.allSettled([
      mesh.collections.listCollections({}),
      mesh.retriever.listRetrievers({}),
      mesh.generator.listModels({}),
    ]);
    if (whose !== this.#whose) return;
    // Without a list of retrievers or models their defaults can still be asked.
    this.error = collections.status === "rejected" ? collections.reason : undefined;
    if (collections.status === "fulfilled") this.collections = collections.value.collections;
    if (retrievers.status === "fulfilled") this.retrievers = retrievers.value.retrievers;
    if (models.status === "fulfilled") this.models = models.value.models;
  }
}

export const catalogue = new Catalogue();
