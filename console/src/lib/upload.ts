/** Uploads of documents: files in, what was read and added out, with progress. */

import { session } from "./session.svelte";

/** A file to upload, and its address: its name, with the folders above it where a folder was chosen. */
export interface Chosen {
  file: File;
  address: string;
}

export interface Named {
  document: string;
  reason: string;
}

/** What was read of an upload, and what became of it. */
export interface UploadResult {
  dryRun: boolean;
  files: number;
  passages: number;
  size: number;
  unit: string;
  numProviders: number;
  providers: { name: string; passages: number; document: string }[];
  rules: Record<string, number>;
  withoutProvider: number;
  oversize: number;
  numSkipped: number;
  skipped: Named[];
  numNotes: number;
  notes: Named[];
  numEmpty: number;
  empty: string[];
  duplicates: { dropped: number; mirrored: number; near: number };
  added?: number;
  replaced?: number;
  unchanged?: number;
}

/** How far an upload is: words, and a share where one is known. */
export interface Progress {
  words: string;
  share?: number;
}

export interface UploadOptions {
  /** Rules for the provider; none for the default ones. */
  provider: string[];
  /** Whether to read only, and add nothing. */
  dryRun: boolean;
}

/** Longest time of an upload. Seconds. */
const TIMEOUT_S = 3600;

interface Event {
  received?: { files: number };
  reading?: { done: number; files: number };
  read?: { passages: number };
  sent?: { done: number; passages: number };
  embedding?: { collection: { embedded?: number } };
}

function progressOf(event: Event): Progress | undefined {
  if (event.received) return { words: "Reading the files" };
  if (event.reading) {
    const { done, files } = event.reading;
    return { words: `Reading: ${done} of ${files} files`, share: done / files };
  }
  if (event.sent) {
    const { done, passages } = event.sent;
    if (done >= passages) return { words: "Adding them to the collection" };
    return { words: `Adding: ${done} of ${passages} passages`, share: done / passages };
  }
  if (event.embedding) {
    const share = event.embedding.collection.embedded ?? 0;
    return { words: "They can be found. Making vectors", share };
  }
  return undefined;
}

/** An error as the gateway states it. */
function refusal(problem: { detail?: string; title?: string; code?: string }): Error {
  return Object.assign(new Error(problem.detail ?? problem.title ?? "the upload broke off"), { upload: true, code: problem.code });
}

/**
 * Upload files to a collection. XMLHttpRequest, as `fetch` does not say how much of a body was sent.
 *
 * @throws Error if it is refused, fails, or is aborted.
 */
export function upload(
  collection: string,
  chosen: Chosen[],
  options: UploadOptions,
  onProgress: (progress: Progress) => void,
  signal: AbortSignal,
): Promise<UploadResult> {
  const url = new URL(`../v1/collections/${encodeURIComponent(collection)}/documents`, location.href.split("#")[0]);
  for (const rule of options.provider) url.searchParams.append("provider", rule);
  if (options.dryRun) url.searchParams.set("dry_run", "true");
  const form = new FormData();
  for (const one of chosen) form.append("file", one.file, one.address);
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    let read = 0;
    let result: UploadResult | undefined;
    let failure: Error | undefined;

    function take(): void {
      // An event ends with an empty line; what follows the last one is not whole yet.
      for (let end = request.responseText.indexOf("\n\n", read); end >= 0; end = request.responseText.indexOf("\n\n", read)) {
        const lines = request.responseText.slice(read, end).split("\n");
        read = end + 2;
        const named = lines.find((line) => line.startsWith("event: "))?.slice(7);
        const data = lines.find((line) => line.startsWith("data: "))?.slice(6);
        if (data === undefined) continue;
        const value = JSON.parse(data);
        if (named === "end") result = value as UploadResult;
        else if (named === "error") failure = refusal(value);
        else {
          const progress = progressOf(value as Event);
          if (progress) onProgress(progress);
        }
      }
    }

    request.open("POST", url);
    request.setRequestHeader("accept", "text/event-stream");
    request.setRequestHeader("x-request-timeout", String(TIMEOUT_S));
    if (session.key) request.setRequestHeader("authorization", `Bearer ${session.key}`);
    request.upload.onprogress = (event) => {
      if (event.lengthComputable) onProgress({ words: "Sending the files", share: event.loaded / event.total });
    };
    request.onprogress = () => {
      if (request.status === 200) take();
    };
    request.onload = () => {
      if (request.status !== 200) {
        let problem = {};
        try {
          problem = JSON.parse(request.responseText);
        } catch {
          // It is not of the gateway.
        }
        return reject(refusal(problem));
      }
      take();
      if (result) resolve(result);
      else reject(failure ?? refusal({}));
    };
    request.onerror = () => reject(refusal({ detail: "the gateway does not answer, or refused files of this size" }));
    request.onabort = () => reject(signal.reason);
    signal.addEventListener("abort", () => request.abort());
    onProgress({ words: "Sending the files", share: 0 });
    request.send(form);
  });
}

/** Most files that are taken of what was dropped. */
const MOST_FILES = 1000;

/** Return the files of what was dropped, those of folders too. */
export async function dropped(items: DataTransferItemList): Promise<Chosen[]> {
  const found: Chosen[] = [];
  const entries = [...items].map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  // Addresses begin within a folder that is dropped alone, as within one that is chosen.
  const above = entries.length === 1 && entries[0]!.isDirectory ? entries[0]!.fullPath.length + 1 : 1;
  while (entries.length && found.length < MOST_FILES) {
    const entry = entries.shift()!;
    if (entry.isFile) {
      const file = await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject));
      if (!file.name.startsWith(".")) found.push({ file, address: entry.fullPath.slice(above) });
      continue;
    }
    const reader = (entry as FileSystemDirectoryEntry).createReader();
    for (;;) {
      // A folder gives its entries in parts, an empty one last.
      const part = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
      if (!part.length) break;
      entries.push(...part);
    }
  }
  return found;
}

/** Return the files that were chosen, without those whose name begins with a dot. */
export const chosenOf = (files: FileList): Chosen[] =>
  [...files]
    .map((file) => ({ file, address: file.webkitRelativePath.split("/").slice(1).join("/") || file.name }))
    .filter((one) => !one.address.split("/").some((part) => part.startsWith(".")));
