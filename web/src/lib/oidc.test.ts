import { expect, test } from "vitest";

import { challengeOf, claimsOf, early, meantFor } from "./oidc";

const base64url = (text: string): string =>
  btoa(String.fromCharCode(...new TextEncoder().encode(text))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const token = (claims: object): string => `e30.${base64url(JSON.stringify(claims))}.sig`;

test("the challenge is that of RFC 7636, appendix B", async () => {
  expect(await challengeOf("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")).toBe("E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
});

test("of an issuer's tokens the one is taken that is meant for the server", () => {
  const access = token({ aud: ["account", "treadle"], sub: "änn" });
  const identity = token({ aud: "console" });
  expect(meantFor("treadle", { access_token: access, id_token: identity })).toBe(access);
  expect(meantFor("console", { access_token: "opaque", id_token: identity })).toBe(identity);
  expect(meantFor("nobody", { access_token: access, id_token: identity })).toBeNull();
  expect(claimsOf(access)?.["sub"]).toBe("änn");
  expect(["opaque", "a.%%.c", undefined].map(claimsOf)).toEqual([null, null, null]);
});

test("a token is replaced a minute before its end, or at half its life", () => {
  expect([3600, 60, 4].map(early)).toEqual([3_540_000, 30_000, 2000]);
});
