import { useQuery } from "@tanstack/react-query";
import { useParams } from "react-router";

import { Empty, Loading } from "../components/bits";
import { explained, marked } from "../lib/errors";
import { patient } from "../lib/patient";
import { text } from "../strings";

/** What a code means and what to do about it. */
export function ErrorPage() {
  const { code = "" } = useParams();
  const pages = useQuery({ queryKey: ["error-pages"], queryFn: () => patient(() => import("../lib/errorPages")), staleTime: Infinity });
  if (pages.data === undefined) return <Loading />;
  const found = explained(pages.data.PAGES, code);
  return (
    <div className="page">
      <h1>{code}</h1>
      {found === null ? <Empty why={text.noErrorPage} /> : found.parts.map((part) => (
        <section key={part.heading}>
          <h2>{part.heading}</h2>
          {part.text.split(/\n\n+/).map((paragraph, n) => (
            <p key={n} className="prose">{marked(paragraph).map((piece, m) => (piece.code ? <code key={m}>{piece.text}</code> : piece.text))}</p>
          ))}
        </section>
      ))}
    </div>
  );
}
