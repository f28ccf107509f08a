import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// Built into the Python package, which serves it. Nothing is inlined: the content security policy takes no inline script.
export default defineConfig({
  plugins: [react()],
  build: {
    outDir: "../src/treadle/server/console",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 2000,
  },
  server: { proxy: { "/api": "http://127.0.0.1:8420" } },
});
