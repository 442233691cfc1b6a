/** The client of an evenmesh in Node over gRPC, without a gateway. */

import type { DescService } from "@bufbuild/protobuf";
import type { Transport } from "@connectrpc/connect";
import { createGrpcTransport, type GrpcTransportOptions } from "@connectrpc/connect-node";

import { nameUnreachable } from "./errors.js";
import { authorizing, Mesh, TIMEOUT_MS, type Credential } from "./mesh.js";

/** The services of a mesh. */
export type ServiceName = "orchestrator" | "retriever" | "reranker" | "generator" | "evaluator";

/** Where the services are, and who calls. */
export interface GrpcOptions {
  /** URL of each service, such as `http://127.0.0.1:7070`; `https://` with TLS. */
  addresses?: Partial<Record<ServiceName, string>>;
  credential?: Credential;
  /** Options of Node's HTTP/2 client, such as `ca`, `cert` and `key` for TLS. */
  nodeOptions?: GrpcTransportOptions["nodeOptions"];
}

const LOCAL: Record<ServiceName, string> = {
  orchestrator: "http://127.0.0.1:7070",
  retriever: "http://127.0.0.1:7071",
  reranker: "http://127.0.0.1:7072",
  generator: "http://127.0.0.1:7073",
  evaluator: "http://127.0.0.1:7074",
};

/** Return a client that speaks gRPC with each service; without addresses with those of `evenmesh up`. */
export function grpcMesh({ addresses, credential, nodeOptions }: GrpcOptions = {}): Mesh {
  const opened = new Map<string, Transport>();
  return new Mesh((service: DescService) => {
    const name = service.typeName.split(".")[1] as ServiceName;
    const baseUrl = addresses?.[name] ?? LOCAL[name];
    let transport = opened.get(baseUrl);
    if (transport === undefined) {
      const tls = nodeOptions === undefined ? {} : { nodeOptions };
      const named = nameUnreachable(() => `no ${name} answers at ${baseUrl}; start the mesh with: evenmesh up`);
      const interceptors = [authorizing(credential), named];
      transport = createGrpcTransport({ baseUrl, interceptors, defaultTimeoutMs: TIMEOUT_MS, ...tls });
      opened.set(baseUrl, transport);
    }
    return transport;
  });
}
