/** What a caller gives to a call, checked before anything is sent: without types, as in JavaScript, nothing else says it. */

import { create, type DescField, type DescMessage, type DescOneof } from "@bufbuild/protobuf";
import { isFieldError, reflect, type ReflectMessage } from "@bufbuild/protobuf/reflect";
import { Code, ConnectError } from "@connectrpc/connect";

import { MeshError } from "./errors.js";
import { BadRequestSchema, ErrorInfoSchema } from "./gen/google/rpc/error_details_pb.js";

/** Longest time for a call that gives one, as in Python: timers take no more than 24 days. Milliseconds. */
const LONGEST_MS = 86_400_000;

/** Return the error of a field, as a service of the mesh words it. */
export function invalid(field: string, description: string): MeshError {
  const details = [
    { desc: ErrorInfoSchema, value: { reason: "INVALID_FIELD", domain: "evenmesh" } },
    { desc: BadRequestSchema, value: { fieldViolations: [{ field, description }] } },
  ];
  return new MeshError(new ConnectError(`${field}: ${description}`, Code.InvalidArgument, undefined, details));
}

/**
 * Return the time for a call; of more than a day, a day. Milliseconds.
 *
 * @throws MeshError if it is no number, or below 0.
 */
export function checkedTimeout(timeoutMs: number | undefined): number | undefined {
  if (timeoutMs === undefined) return undefined;
  if (typeof timeoutMs !== "number" || !(timeoutMs >= 0))
    throw invalid("timeoutMs", `must be a number of milliseconds, 0 or more, got ${shown(timeoutMs)}`);
  return Math.min(timeoutMs, LONGEST_MS);
}

/**
 * Check that every member of a message is a field of it, of a value that the field can have.
 *
 * @throws MeshError `INVALID_FIELD`, which names the first field at fault.
 */
export function check(schema: DescMessage, given: unknown, path = ""): void {
  if (typeof given !== "object" || given === null || Array.isArray(given))
    throw invalid(path || "request", `must be an object with the fields of ${schema.name}, got ${shown(given)}`);
  const scratch = reflect(schema, create(schema));
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || name.startsWith("$")) continue;
    const member = schema.members.find((one) => one.localName === name);
    if (member === undefined) throw invalid(within(path, name), unknown(schema, name));
    if (member.kind === "field") checkField(scratch, member, value, within(path, member.name));
    else checkOneof(scratch, member, value, path);
  }
}

function checkOneof(scratch: ReflectMessage, oneof: DescOneof, given: unknown, path: string): void {
  const { case: name, value } = (typeof given === "object" ? given : {}) as { case?: unknown; value?: unknown };
  const field = oneof.fields.find((one) => one.localName === name);
  if (field !== undefined) {
    if (value === undefined || value === null) throw invalid(within(path, field.name), "is chosen, and has no value");
    checkField(scratch, field, value, within(path, field.name));
  } else if (name !== undefined || !(typeof given === "object" && "case" in (given as object))) {
    const cases = oneof.fields.map((one) => JSON.stringify(one.localName)).join(", ");
    throw invalid(within(path, oneof.name), `must be { case, value } with one of the cases ${cases}`);
  }
}

function checkField(scratch: ReflectMessage, field: DescField, value: unknown, path: string): void {
  switch (field.fieldKind) {
    case "message":
      return check(field.message, value, path);
    case "list": {
      if (!Array.isArray(value)) throw invalid(path, `must be an array, got ${shown(value)}`);
      const list = scratch.get(field);
      return value.forEach((one: unknown, at) => {
        if (field.listKind === "message") check(field.message, one, `${path}[${at}]`);
        else named(`${path}[${at}]`, () => list.add(one));
      });
    }
    case "map": {
      if (typeof value !== "object" || Array.isArray(value)) throw invalid(path, `must be an object, got ${shown(value)}`);
      const map = scratch.get(field);
      for (const [key, one] of Object.entries(value as object)) {
        if (field.mapKind === "message") check(field.message, one, `${path}[${JSON.stringify(key)}]`);
        else named(`${path}[${JSON.stringify(key)}]`, () => map.set(key, one));
      }
      return;
    }
    default:
      named(path, () => scratch.set(field, value));
  }
}

/** Set a value, which the library checks. */
function named(path: string, set: () => unknown): void {
  try {
    set();
  } catch (error) {
    // The path names the item, which the library counts from 1.
    throw isFieldError(error) ? invalid(path, error.message.replace(/^(list item #\d+|map entry .*?): /s, "")) : error;
  }
}

/** Say what there is instead of a member; one of a oneof is what is most often meant. */
function unknown(schema: DescMessage, name: string): string {
  const oneof = schema.oneofs.find((one) => one.fields.some((field) => field.localName === name));
  if (oneof) return `is one of several: write ${oneof.localName}: { case: ${JSON.stringify(name)}, value: … }`;
  return `is no field of ${schema.name}; there are: ${schema.members.map((one) => one.localName).join(", ")}`;
}

function within(path: string, name: string): string {
  return path ? `${path}.${name}` : name;
}

function shown(value: unknown): string {
  return typeof value === "number" || value === null ? String(value) : Array.isArray(value) ? "an array" : `a ${typeof value}`;
}
