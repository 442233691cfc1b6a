import { fileURLToPath } from "node:url";

import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

export default defineConfig({
  base: "./", // served below /console/, behind whatever path a proxy adds
  plugins: [svelte()],
  resolve: {
    alias: {
      "evenmesh/gen": here("../clients/typescript/src/gen"),
      evenmesh: here("../clients/typescript/src/index.ts"),
    },
    dedupe: ["@bufbuild/protobuf", "@connectrpc/connect", "@connectrpc/connect-web"],
  },
  build: {
    outDir: here("../services/gateway/evenmesh_gateway/console/files"),
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // no data: addresses, which the content security policy forbids
    modulePreload: { polyfill: false },
  },
  server: { proxy: { "^/(evenmesh\\.|console/(sign-in|session|health))": process.env.EVENMESH_GATEWAY ?? "http://127.0.0.1:7080" } },
});
