/** Who uses the console: a key, kept in memory or until the tab is closed, and what its roles allow. */

import { connectMesh, MeshError, Code, type Mesh } from "evenmesh";

import { arrival, arrive, inWindow, leave, renew, type Granted, type Provider } from "./provider";

const STORED = "evenmesh-key";
/** Timers of browsers take no more. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

export type Role = "ask" | "ingest" | "feedback" | "train" | "provider" | "admin";

/** What the gateway says of the caller. */
export interface Identity {
  /** Whether the gateway knows its callers; otherwise the services behind it decide. */
  known: boolean;
  name: string;
  tenant: string;
  roles: Role[];
  /** Whether this gateway takes uploads of documents. */
  documents: boolean;
  /** Address of a trace, with `{trace_id}` in it; empty where traces are not shown. */
  traces: string;
}

function stored(): string {
  try {
    return sessionStorage.getItem(STORED) ?? "";
  } catch {
    return "";
  }
}

export const session = $state({
  key: stored(),
  identity: null as Identity | null,
  /** Why nobody is signed in; empty before anything was refused. */
  refused: "",
  asking: true,
  /** Whether the key or token of who is signed in is no longer taken. The page stays as it is. */
  expired: false,
  /** With whom people sign in; null where keys and tokens are pasted. */
  provider: null as Provider | null,
  /** Whether this window was opened to sign in, and has nothing left to do. */
  done: false,
});

/** Say that a call was refused for who calls. */
export function expire(): void {
  if (session.identity?.known) session.expired = true;
}

/** The mesh behind the gateway that serves this page. */
export const mesh: Mesh = connectMesh({
  baseUrl: location.origin,
  credential: () => session.key || undefined,
});

/** Fetch JSON from the gateway itself, as the caller. */
export async function fromGateway<T>(path: string): Promise<T> {
  const headers: HeadersInit = session.key ? { authorization: `Bearer ${session.key}` } : {};
  const response = await fetch(new URL(path, location.href), { headers });
  const body = await response.json();
  if (response.status === 401) expire();
  if (!response.ok) throw Object.assign(new Error(body.detail ?? response.statusText), { status: response.status });
  return body as T;
}

/** What the issuer sent; taken out of the address before the page is drawn. */
const arrived = arrival();

/** Begin: finish a sign-in if the issuer sent the browser back, and ask the gateway who this is. */
export async function begin(): Promise<void> {
  if (arrived?.window) return void (session.done = true);
  try {
    session.provider = (await fromGateway<{ provider: Provider | null }>("sign-in")).provider;
    if (arrived && session.provider) {
      const { keep, ...found } = await arrive(session.provider, arrived);
      take(found, keep);
    }
  } catch (error) {
    session.asking = false;
    session.refused = arrived ? `The sign-in did not work: ${(error as Error).message}` : AWAY;
    return;
  }
  await identify();
}

/** Ask the gateway who this is. */
export async function identify(): Promise<void> {
  session.asking = true;
  try {
    session.identity = await fromGateway<Identity>("session");
    [session.refused, session.expired] = ["", false];
  } catch (error) {
    const status = (error as { status?: number }).status;
    session.refused =
      status === 401
        ? session.key
          ? "This key is not known here, or it has expired."
          : "This mesh wants to know who you are."
        : AWAY;
    if (!session.expired) session.identity = null;
    if (status === 401 && session.key) forget();
  } finally {
    session.asking = false;
  }
}

const AWAY = "The gateway does not answer. It may be starting; try again.";

/** Sign in with a key; `keep` holds it until this tab is closed, otherwise it is gone with the page. */
export async function signIn(key: string, keep: boolean): Promise<void> {
  hold(key.trim(), keep);
  await identify();
}

/** Sign in with the issuer: in a window of its own where the page must stay as it is, otherwise by leaving it. */
export async function signInWith(provider: Provider, keep: boolean): Promise<void> {
  waiting.abort();
  waiting = new AbortController();
  const { signal } = waiting;
  try {
    if (!session.expired) return await leave(provider, keep);
    take(await inWindow(provider, signal), keep);
    await identify();
  } catch (error) {
    if (!signal.aborted) session.refused = `The sign-in did not work: ${(error as Error).message}`;
  }
}

let waiting = new AbortController();
let renewal: ReturnType<typeof setTimeout> | undefined;

/** Use a token, and get the next one before it expires where the issuer allows it. */
function take({ token, lifetimeMs, refresh }: Granted, keep: boolean): void {
  hold(token, keep);
  clearTimeout(renewal);
  const provider = session.provider;
  if (!provider || !refresh || !lifetimeMs) return;
  renewal = setTimeout(async () => {
    try {
      const next = await renew(provider, refresh);
      if (session.key === token) take(next, keep);
    } catch {
      // The token lasts a little longer; then the page asks to sign in again.
    }
  }, Math.min(0.8 * lifetimeMs, LONGEST_TIMER_MS));
}

function hold(key: string, keep: boolean): void {
  session.key = key;
  try {
    if (keep) sessionStorage.setItem(STORED, key);
    else sessionStorage.removeItem(STORED);
  } catch {
    // Without storage the key lives as long as the page.
  }
}

function forget(): void {
  session.key = "";
  try {
    sessionStorage.removeItem(STORED);
  } catch {
    // There was none.
  }
}

export async function signOut(): Promise<void> {
  clearTimeout(renewal);
  forget();
  [session.identity, session.expired] = [null, false];
  await identify();
}

/** Whether the caller has one of the roles; true where only the services behind the gateway know. */
export function may(...roles: Role[]): boolean {
  const have = session.identity?.roles ?? [];
  return have.includes("admin") || roles.some((role) => have.includes(role));
}

/** Whether an error says that the caller is not, or no longer, known. */
export function isUnknownCaller(error: unknown): boolean {
  if (error instanceof Error && "upload" in error) return (error as { code?: string }).code === "UNAUTHENTICATED";
  return error instanceof MeshError && error.code === Code.Unauthenticated;
}

/** Say in plain words what went wrong. */
export function inWords(error: unknown, kept = true): { title: string; detail: string; again: boolean } {
  if (error instanceof Error && "upload" in error) return { title: "The upload was not taken", detail: error.message, again: true };
  const found = MeshError.from(error);
  const detail = found.rawMessage;
  const before = kept ? " What came before is still shown." : "";
  switch (found.code) {
    case Code.Unauthenticated:
      return { title: "Please sign in again", detail, again: false };
    case Code.PermissionDenied:
      return { title: "Your key does not allow this", detail, again: false };
    case Code.ResourceExhausted: {
      const wait = found.retryAfterMs ? ` Try again in ${Math.ceil(found.retryAfterMs / 1000)} s.` : "";
      return { title: "The mesh is busy", detail: detail + wait, again: true };
    }
    case Code.DeadlineExceeded:
      return { title: "It took too long", detail, again: true };
    case Code.NotFound:
      return { title: "Not found", detail, again: false };
    case Code.InvalidArgument:
    case Code.FailedPrecondition:
    case Code.OutOfRange:
      return { title: "This cannot be done so", detail, again: false };
    case Code.Unavailable:
      return { title: "A service does not answer", detail: `${detail}.${before}`, again: true };
    default:
      return { title: "The call broke off", detail: `${detail}.${before}`, again: true };
  }
}
