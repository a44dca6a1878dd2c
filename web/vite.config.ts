import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// Fixed names: the server knows its files by path, and a rebuild of the same source gives the same bytes.
export default defineConfig({
  plugins: [svelte()],
  publicDir: "public",
  build: {
    outDir: "../src/pellucid/server/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        entryFileNames: "page.js",
        assetFileNames: "page[extname]",
        inlineDynamicImports: true,
      },
    },
  },
  server: { proxy: { "/v1": "http://127.0.0.1:8000", "/inspect": "http://127.0.0.1:8000", "/version": "http://127.0.0.1:8000" } },
});
