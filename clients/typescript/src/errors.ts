import { Code, ConnectError, type Interceptor } from "@connectrpc/connect";

import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";

/**
 * An error of a mesh: a gRPC status with its `google.rpc` details read.
 *
 * It is a `ConnectError`, so `code` is one of Connect's `Code`.
 */
export class MeshError extends ConnectError {
  /** Machine-readable reason, such as `NOT_FOUND`; empty if the error is not one of a mesh. */
  readonly reason: string;
  /** Path of the invalid field of the request, such as `sampling.alpha`; empty if no field is at fault. */
  readonly field: string;
  /** Time after which a retry may succeed; undefined if a retry does not help. Milliseconds. */
  readonly retryAfterMs: number | undefined;

  constructor(error: ConnectError) {
    super(error.rawMessage, error.code, error.metadata, undefined, error.cause);
    this.name = "MeshError";
    this.details = error.details;
    this.reason = error.findDetails(ErrorInfoSchema)[0]?.reason ?? "";
    this.field = error.findDetails(BadRequestSchema)[0]?.fieldViolations[0]?.field ?? "";
    const delay = error.findDetails(RetryInfoSchema)[0]?.retryDelay;
    this.retryAfterMs = delay && Number(delay.seconds) * 1000 + delay.nanos / 1e6;
  }

  /** Whether the caller ended the call. */
  get cancelled(): boolean {
    return this.code === Code.Canceled;
  }

  /** Tell an error of a mesh from one of Connect, whose own check accepts both. */
  static override [Symbol.hasInstance](value: unknown): boolean {
    return Object.prototype.isPrototypeOf.call(MeshError.prototype, value as object);
  }

  /** Return any error as one of a mesh. */
  static override from(error: unknown): MeshError {
    return error instanceof MeshError ? error : new MeshError(ConnectError.from(error));
  }
}

/** Return the error of a call that `fetch` did not bring to a server, or broke off, as UNAVAILABLE; any other as it is. */
export function unavailable(error: unknown): unknown {
  return error instanceof TypeError ? new ConnectError(error.message, Code.Unavailable, undefined, undefined, error) : error;
}

/** Return a response of `fetch`, whose body is UNAVAILABLE where the connection breaks within it. */
export function brokenAsUnavailable(response: Response): Response {
  const failed = (error: unknown): Promise<never> => Promise.reject(unavailable(error));
  const { arrayBuffer, json } = response;
  response.arrayBuffer = () => arrayBuffer.call(response).catch(failed);
  response.json = () => json.call(response).catch(failed);
  return response;
}

/**
 * Return a response, or throw where its address has a path at which nothing speaks Connect.
 *
 * Other APIs have such paths: `/v1` is that of OpenAI's clients. A proxy may add one, so a path alone is no error.
 */
export function checkPath(response: Response, baseUrl: string): Response {
  const path = /^(\w+:\/\/[^/]+)\/+[^/]/.exec(baseUrl);
  if (path === null || ![404, 405, 415].includes(response.status)) return response;
  if (response.headers.get("content-type")?.startsWith("application/json")) return response; // Connect's own error
  const message = `nothing speaks Connect at ${baseUrl} (HTTP ${response.status}); give the gateway's address without a path: ${path[1]}`;
  const details = [{ desc: ErrorInfoSchema, value: { reason: "NO_ROUTE", domain: "evenmesh" } }];
  throw new ConnectError(message, Code.Unimplemented, undefined, details);
}

/**
 * Return what names the address in the error of a call that no service of a mesh answered, with reason `UNREACHABLE`.
 *
 * Node's transport says CANCELED or ABORTED of a connection that the other side closed or reset within a call. No call
 * is that unless its caller ended it.
 */
export function nameUnreachable(message: () => string): Interceptor {
  const named = (error: unknown, signal: AbortSignal): unknown => {
    if (!(error instanceof ConnectError) || error.findDetails(ErrorInfoSchema).length) return error;
    const broken = !signal.aborted && (error.code === Code.Canceled || error.code === Code.Aborted);
    if (error.code !== Code.Unavailable && !broken) return error;
    const details = [{ desc: ErrorInfoSchema, value: { reason: "UNREACHABLE", domain: "evenmesh" } }];
    return new ConnectError(message(), Code.Unavailable, error.metadata, details, error);
  };
  return (next) => async (request) => {
    try {
      const response = await next(request);
      if (!response.stream) return response;
      return { ...response, message: failingAs(response.message, (error) => named(unavailable(error), request.signal)) };
    } catch (error) {
      throw named(error, request.signal);
    }
  };
}

/** Yield messages; an error is thrown as another. */
export async function* failingAs<T>(messages: AsyncIterable<T>, as: (error: unknown) => unknown): AsyncIterable<T> {
  try {
    yield* messages;
  } catch (error) {
    throw as(error);
  }
}
