/** Numbers and times as people read them. */

import type { Estimate } from "evenmesh/gen/evenmesh/common/v1/common_pb.js";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value: number | bigint): string => whole.format(value);

export const percent = (share: number, digits = 0): string => `${(100 * share).toFixed(digits)}\u00a0%`;

export const decimal = (value: number, digits = 2): string => value.toFixed(digits);

/** A number that may be missing. */
export const number = (value: number | undefined, digits = 2): string =>
  value === undefined || Number.isNaN(value) ? "–" : value.toFixed(digits);

export function duration(ms: number): string {
  if (ms < 1) return "<\u00a01\u00a0ms";
  if (ms < 1000) return `${Math.round(ms)}\u00a0ms`;
  if (ms < 120_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)}\u00a0s`;
  const minutes = Math.round(ms / 60_000);
  return minutes < 120 ? `${minutes}\u00a0min` : `${Math.round(minutes / 60)}\u00a0h`;
}

export function bytes(size: bigint | number): string {
  let value = Number(size);
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000) return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)}\u00a0${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)}\u00a0TB`;
}

export const when = (seconds: bigint | undefined): string =>
  seconds === undefined
    ? "–"
    : new Date(1000 * Number(seconds)).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });

/** The same where there is little room: the time of this year's days, the year of others. */
export function whenShort(seconds: bigint | undefined): string {
  if (seconds === undefined) return "–";
  const then = new Date(1000 * Number(seconds));
  const rest = then.getFullYear() === new Date().getFullYear() ? ({ hour: "numeric", minute: "2-digit" } as const) : ({ year: "numeric" } as const);
  return then.toLocaleString(undefined, { month: "short", day: "numeric", ...rest });
}

/** A mean with its 95 % interval. */
export function estimate(value: Estimate | undefined, digits = 2): { mean: string; interval: string } {
  if (value?.mean === undefined) return { mean: "–", interval: "" };
  const { low, high } = value;
  const interval = low !== undefined && high !== undefined ? `${low.toFixed(digits)} to ${high.toFixed(digits)}` : "";
  return { mean: value.mean.toFixed(digits), interval };
}

/** Say over how many a mean is, where that is not all of them: "of 1 ask". */
export function ofSome(value: Estimate | undefined, all: bigint, unit = "ask"): string {
  if (value?.mean === undefined || (unit === "ask" && value.count === all)) return "";
  return `of ${count(value.count)} ${unit}${value.count === 1n ? "" : "s"}`;
}

/** Cut a text by characters as the mesh counts them: code points, not UTF-16 units. */
export function around(text: string, start: number, end: number): [string, string, string] {
  const points = Array.from(text);
  return [points.slice(0, start).join(""), points.slice(start, end).join(""), points.slice(end).join("")];
}
