/** The client of an evenmesh, for browsers and for Node: over Connect, through the gateway. */

import { createConnectTransport } from "@connectrpc/connect-web";

import { brokenAsUnavailable, checkPath, nameUnreachable, unavailable } from "./errors.js";
import { authorizing, Mesh, TIMEOUT_MS, type Credential } from "./mesh.js";

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
    defaultTimeoutMs: TIMEOUT_MS,
    interceptors: [authorizing(credential), nameUnreachable(() => nobodyAt(baseUrl))],
    fetch: (...request) =>
      fetch(...request).then(
        (response) => brokenAsUnavailable(checkPath(response, baseUrl)),
        (error: unknown) => Promise.reject(unavailable(error)),
      ),
  });
  return new Mesh(() => transport);
}

/** Say that no gateway answers, and what to do; browsers do not tell pages whether it runs and refuses them. */
function nobodyAt(baseUrl: string): string {
  const page = (globalThis as { location?: Location }).location?.origin;
  const foreign = page !== undefined && baseUrl.includes("://") && !`${baseUrl}/`.startsWith(`${page}/`);
  const refused = foreign ? `; if it runs, it must allow pages of ${page}: EVENMESH_GATEWAY_CORS_ORIGINS` : "";
  return `no gateway answers at ${baseUrl}; start the mesh with: evenmesh up${refused}`;
}
