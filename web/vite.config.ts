import { defineConfig } from "vite";

// `make web` builds into the server's package; the result must be the same on every machine.
export default defineConfig({
  base: "/",
  build: {
    outDir: process.env.OUT ?? "../tampu/server/static",
    emptyOutDir: true,
    target: ["chrome123", "firefox121", "safari17.5"],
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    sourcemap: false,
    reportCompressedSize: false,
    rolldownOptions: {
      output: {
        entryFileNames: "assets/[name]-[hash].js",
        chunkFileNames: "assets/[name]-[hash].js",
        assetFileNames: "assets/[name]-[hash][extname]",
      },
    },
  },
  server: { proxy: { "/api": "http://127.0.0.1:11434" } },
});
