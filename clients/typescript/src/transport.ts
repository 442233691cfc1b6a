/** What every call of a mesh passes, whichever transport it takes. */

import type { DescMessage } from "@bufbuild/protobuf";
import type { Transport } from "@connectrpc/connect";

import { check, checkedTimeout } from "./checks.js";
import { failingAs, MeshError } from "./errors.js";

/** Return a transport that checks what it is given before it sends it, and whose errors are each a {@link MeshError}. */
export function forMesh(transport: Transport): Transport {
  return {
    async unary(method, signal, timeoutMs, header, input, contextValues) {
      check(method.input, input);
      try {
        return await transport.unary(method, signal, checkedTimeout(timeoutMs), header, input, contextValues);
      } catch (error) {
        throw MeshError.from(error);
      }
    },
    async stream(method, signal, timeoutMs, header, input, contextValues) {
      const [given, wrong] = checking(method.input, input);
      // A single request is checked before anything is sent, requests that follow each other as they come.
      const sent = method.methodKind === "server_streaming" ? again(await all(given)) : given;
      const asMesh = (error: unknown): MeshError => wrong() ?? MeshError.from(error);
      try {
        const response = await transport.stream(method, signal, checkedTimeout(timeoutMs), header, sent, contextValues);
        return { ...response, message: failingAs(response.message, asMesh) };
      } catch (error) {
        throw asMesh(error);
      }
    },
  };
}

/** Return requests that are checked as they are read, and what returns the error of the one at fault. */
function checking<T>(schema: DescMessage, input: AsyncIterable<T>): [AsyncIterable<T>, () => MeshError | undefined] {
  let wrong: MeshError | undefined;
  async function* checked(): AsyncIterable<T> {
    for await (const one of input) {
      try {
        check(schema, one);
      } catch (error) {
        throw (wrong = MeshError.from(error));
      }
      yield one;
    }
  }
  return [checked(), () => wrong];
}

async function all<T>(messages: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const one of messages) found.push(one);
  return found;
}

async function* again<T>(messages: T[]): AsyncIterable<T> {
  yield* messages;
}
