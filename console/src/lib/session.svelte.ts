/** Who uses the console: a key, kept in memory or until the tab is closed, and what its roles allow. */

import { connectMesh, MeshError, Code, type Mesh } from "evenmesh";

const STORED = "evenmesh-key";

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
});

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
  if (!response.ok) throw Object.assign(new Error(body.detail ?? response.statusText), { status: response.status });
  return body as T;
}

/** Ask the gateway who this is. */
export async function identify(): Promise<void> {
  session.asking = true;
  try {
    session.identity = await fromGateway<Identity>("session");
    session.refused = "";
  } catch (error) {
    session.identity = null;
    const status = (error as { status?: number }).status;
    session.refused =
      status === 401
        ? session.key
          ? "This key is not known here, or it has expired."
          : "This mesh wants to know who you are."
        : "The gateway does not answer. It may be starting; try again.";
    if (status === 401 && session.key) forget();
  } finally {
    session.asking = false;
  }
}

/** Sign in with a key; `keep` holds it until this tab is closed, otherwise it is gone with the page. */
export async function signIn(key: string, keep: boolean): Promise<void> {
  session.key = key.trim();
  try {
    if (keep) sessionStorage.setItem(STORED, session.key);
    else sessionStorage.removeItem(STORED);
  } catch {
    // Without storage the key lives as long as the page.
  }
  await identify();
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
  forget();
  await identify();
}

/** Whether the caller has one of the roles; true where only the services behind the gateway know. */
export function may(...roles: Role[]): boolean {
  const have = session.identity?.roles ?? [];
  return have.includes("admin") || roles.some((role) => have.includes(role));
}

/** Say in plain words what went wrong. */
export function inWords(error: unknown): { title: string; detail: string; again: boolean } {
  if (error instanceof Error && "upload" in error) return { title: "The upload was not taken", detail: error.message, again: true };
  const found = MeshError.from(error);
  const detail = found.rawMessage;
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
      return { title: "A service does not answer", detail: `${detail}. What came before is still shown.`, again: true };
    default:
      return { title: "The call broke off", detail: `${detail}. What came before is still shown.`, again: true };
  }
}
