/** The client of an evenmesh, for browsers and for Node: over Connect, through the gateway. */

import { createConnectTransport } from "@connectrpc/connect-web";

import { authorizing, Mesh, type Credential } from "./mesh.js";

export { Code } from "@connectrpc/connect";
export { MeshError } from "./errors.js";
export { Mesh } from "./mesh.js";
export type { FeedbackInit } from "./feedback.js";
export type { AskEvent, AskOptions, CallOptions, Credential, TurnOptions } from "./mesh.js";

/** Where a gateway is, and who calls. */
export interface ConnectOptions {
  /** Address of the gateway, such as `http://127.0.0.1:7080`. */
  baseUrl: string;
  credential?: Credential;
}

/** Return a client that speaks Connect with a gateway, by `fetch`. */
export function connectMesh({ baseUrl, credential }: ConnectOptions): Mesh {
  const transport = createConnectTransport({
    baseUrl,
    useBinaryFormat: true,
    interceptors: [authorizing(credential)],
  });
  return new Mesh(() => transport);
}
