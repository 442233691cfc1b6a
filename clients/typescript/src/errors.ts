import { Code, ConnectError, type Transport } from "@connectrpc/connect";

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

/** Return a transport whose errors, of calls and of streams, are each a {@link MeshError}. */
export function withTypedErrors(transport: Transport): Transport {
  return {
    async unary(...call) {
      try {
        return await transport.unary(...call);
      } catch (error) {
        throw MeshError.from(error);
      }
    },
    async stream(...call) {
      try {
        const response = await transport.stream(...call);
        return { ...response, message: typed(response.message) };
      } catch (error) {
        throw MeshError.from(error);
      }
    },
  };
}

async function* typed<T>(messages: AsyncIterable<T>): AsyncIterable<T> {
  try {
    yield* messages;
  } catch (error) {
    throw MeshError.from(error);
  }
}
