/** Signing in with an issuer of OpenID Connect: the authorization code flow with PKCE, as a public client. */

import * as oauth from "oauth4webapi";

export interface Provider {
  issuer: string;
  clientId: string;
  scopes: string;
  audience: string;
}

/** What the issuer gave; times in milliseconds. */
export interface Granted {
  token: string;
  lifetimeMs: number | undefined;
  refresh: string | undefined;
}

/** A sign-in under way: what is checked when the issuer sends the browser back. */
interface Pending {
  state: string;
  nonce: string;
  verifier: string;
  /** The page of the console to come back to. */
  hash: string;
  keep: boolean;
}

const PENDING = "evenmesh-sign-in";
const CHANNEL = "evenmesh-sign-in";

const back = (): string => location.origin + location.pathname;
const clientOf = (provider: Provider): oauth.Client => ({ client_id: provider.clientId });
const insecure = (provider: Provider): { [oauth.allowInsecureRequests]?: boolean } =>
  provider.issuer.startsWith("http://") ? { [oauth.allowInsecureRequests]: true } : {};

async function discover(provider: Provider): Promise<oauth.AuthorizationServer> {
  if (!globalThis.crypto?.subtle) throw new Error("Signing in needs https.");
  const issuer = new URL(provider.issuer);
  const found = await oauth.processDiscoveryResponse(issuer, await oauth.discoveryRequest(issuer, insecure(provider)));
  if (!found.authorization_endpoint || !found.token_endpoint) throw new Error("The issuer names no addresses to sign in at.");
  if (new URL(found.token_endpoint).origin !== issuer.origin) {
    throw new Error(`The issuer gives tokens at ${new URL(found.token_endpoint).origin}, which this page may not call.`);
  }
  return found;
}

async function begin(provider: Provider, keep: boolean): Promise<{ pending: Pending; url: URL }> {
  const server = await discover(provider);
  const pending = {
    state: oauth.generateRandomState(),
    nonce: oauth.generateRandomNonce(),
    verifier: oauth.generateRandomCodeVerifier(),
    hash: location.hash,
    keep,
  };
  const url = new URL(server.authorization_endpoint!);
  const parameters = {
    client_id: provider.clientId,
    redirect_uri: back(),
    response_type: "code",
    scope: provider.scopes,
    code_challenge: await oauth.calculatePKCECodeChallenge(pending.verifier),
    code_challenge_method: "S256",
    state: pending.state,
    nonce: pending.nonce,
    ...(provider.audience ? { audience: provider.audience } : {}),
  };
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  return { pending, url };
}

const granted = (found: oauth.TokenEndpointResponse): Granted => ({
  token: found.access_token,
  lifetimeMs: found.expires_in === undefined ? undefined : 1000 * found.expires_in,
  refresh: found.refresh_token,
});

async function exchange(provider: Provider, pending: Pending, search: string): Promise<Granted> {
  const server = await discover(provider);
  const client = clientOf(provider);
  const parameters = oauth.validateAuthResponse(server, client, new URLSearchParams(search), pending.state);
  const response = await oauth.authorizationCodeGrantRequest(server, client, oauth.None(), parameters, back(), pending.verifier, insecure(provider));
  return granted(await oauth.processAuthorizationCodeResponse(server, client, response, { expectedNonce: pending.nonce, requireIdToken: true }));
}

/** Get a new token for an old one; as long as the issuer allows it. */
export async function renew(provider: Provider, refresh: string): Promise<Granted> {
  const server = await discover(provider);
  const response = await oauth.refreshTokenGrantRequest(server, clientOf(provider), oauth.None(), refresh, insecure(provider));
  const found = granted(await oauth.processRefreshTokenResponse(server, clientOf(provider), response));
  return { ...found, refresh: found.refresh ?? refresh };
}

/** Leave for the issuer; it sends the browser back, where {@link arrive} goes on. */
export async function leave(provider: Provider, keep: boolean): Promise<void> {
  const { pending, url } = await begin(provider, keep);
  sessionStorage.setItem(PENDING, JSON.stringify(pending));
  location.assign(url);
}

/** Sign in in a window of its own, so that this page stays as it is. */
export async function inWindow(provider: Provider, signal: AbortSignal): Promise<Granted> {
  const opened = window.open("about:blank", "_blank", "popup,width=520,height=700"); // at once, or it is blocked
  if (!opened) throw new Error("The browser did not open the window; allow windows of this page.");
  try {
    const { pending, url } = await begin(provider, false);
    const search = new Promise<string>((resolve, reject) => {
      const channel = new BroadcastChannel(CHANNEL);
      channel.onmessage = ({ data }: MessageEvent<string>) => {
        if (new URLSearchParams(data).get("state") !== pending.state) return;
        channel.close();
        resolve(data);
      };
      signal.addEventListener("abort", () => (channel.close(), reject(signal.reason)));
    });
    opened.location.replace(url);
    return await exchange(provider, pending, await search);
  } catch (error) {
    opened.close();
    throw error;
  }
}

export interface Arrival {
  /** Whether this is the window of {@link inWindow}, whose work is done. */
  window: boolean;
  pending?: Pending;
  search: string;
}

/** Take the issuer's answer out of the address, at once, before anything else is done; undefined if there is none. */
export function arrival(): Arrival | undefined {
  const parameters = new URLSearchParams(location.search);
  if (!parameters.has("state") || !(parameters.has("code") || parameters.has("error"))) return undefined;
  const search = location.search;
  let pending: Pending | undefined;
  try {
    pending = JSON.parse(sessionStorage.getItem(PENDING) ?? "null") ?? undefined;
  } catch {
    // It is not ours.
  }
  const mine = pending?.state === parameters.get("state");
  if (mine) sessionStorage.removeItem(PENDING);
  history.replaceState(null, "", location.pathname + (mine ? pending!.hash : ""));
  if (!mine) {
    const channel = new BroadcastChannel(CHANNEL);
    channel.postMessage(search);
    channel.close();
    window.close();
  }
  return { window: !mine, search, ...(mine ? { pending: pending! } : {}) };
}

/** Finish the sign-in that {@link leave} began. */
export async function arrive(provider: Provider, { pending, search }: Arrival): Promise<Granted & { keep: boolean }> {
  return { ...(await exchange(provider, pending!, search)), keep: pending!.keep };
}
