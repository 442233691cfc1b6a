/** SHA-256 (FIPS 180-4) for ids, also where a page has no WebCrypto. */

/**
 * Return the SHA-256 of bytes.
 *
 * Browsers have `crypto.subtle` only on pages over HTTPS and of the same machine. On any other it is computed here:
 * the digest is the same, and slower. It identifies content and keeps no secret.
 */
export async function sha256(data: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
  const subtle = (globalThis.crypto as Crypto | undefined)?.subtle as SubtleCrypto | undefined;
  return subtle ? new Uint8Array(await subtle.digest("SHA-256", data)) : computed(data);
}

/** The first 32 bits of the fractional part of a number. */
const fraction = (value: number): number => Math.floor((value % 1) * 2 ** 32) | 0;
const PRIMES = Array.from({ length: 310 }, (_, index) => index + 2).filter((one) => {
  for (let by = 2; by * by <= one; by++) if (one % by === 0) return false;
  return true;
});
const START = PRIMES.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)));
const ROUNDS = PRIMES.slice(0, 64).map((prime) => fraction(Math.cbrt(prime)));

function computed(data: Uint8Array): Uint8Array {
  const whole = new Uint8Array(64 * Math.ceil((data.length + 9) / 64));
  whole.set(data);
  whole[data.length] = 0x80;
  const words = new DataView(whole.buffer);
  words.setBigUint64(whole.length - 8, 8n * BigInt(data.length));
  const turned = (value: number, by: number): number => (value >>> by) | (value << (32 - by));
  const state = Int32Array.from(START);
  const schedule = new Int32Array(64);
  for (let block = 0; block < whole.length; block += 64) {
    for (let at = 0; at < 64; at++) {
      const [x, y] = [schedule[at - 15]!, schedule[at - 2]!];
      const low = turned(x, 7) ^ turned(x, 18) ^ (x >>> 3);
      const high = turned(y, 17) ^ turned(y, 19) ^ (y >>> 10);
      schedule[at] = at < 16 ? words.getInt32(block + 4 * at) : schedule[at - 16]! + low + schedule[at - 7]! + high;
    }
    let [a, b, c, d, e, f, g, h] = state as unknown as [number, number, number, number, number, number, number, number];
    for (let at = 0; at < 64; at++) {
      const chosen = (e & f) ^ (~e & g);
      const first = (h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + chosen + ROUNDS[at]! + schedule[at]!) | 0;
      const second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + second) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((value, index) => (state[index]! += value));
  }
  const digest = new DataView(new ArrayBuffer(32));
  state.forEach((word, index) => digest.setInt32(4 * index, word));
  return new Uint8Array(digest.buffer);
}
