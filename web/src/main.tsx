import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { BrowserRouter } from "react-router";

import { App } from "./app";
import { Refusal } from "./lib/api";
import "./theme.css";

// What the server refused it refuses again; only silence is worth another try.
const again = (count: number, error: Error): boolean => count < 2 && !(error instanceof Refusal && (error.status === 401 || error.status === 403));
const client = new QueryClient({ defaultOptions: { queries: { staleTime: 2000, retry: again, refetchOnWindowFocus: true } } });
const root = document.getElementById("root");
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={client}>
        <BrowserRouter><App /></BrowserRouter>
      </QueryClientProvider>
    </StrictMode>,
  );
}
