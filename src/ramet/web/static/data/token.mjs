// The key of the page. It lives in this tab only.
import {Api} from "./api.mjs";
import {unescaped} from "./text.mjs";

const NAME = "ramet-token";

/** Take the code or token out of the address, so that no bookmark has it; return the token, or why there is none. */
export async function takeToken(place = location, storage = sessionStorage) {
  const [, kind, text] = /^#(token|code)=([^&]+)/.exec(place.hash) ?? [];
  let reason = "This tab has no token.";
  if (kind) history.replaceState(null, "", place.pathname + place.search);
  if (kind === "token") storage.setItem(NAME, unescaped(text));
  if (kind === "code") {
    try {
      storage.setItem(NAME, (await new Api(unescaped(text)).post("session")).token);
    } catch (problem) {
      reason = problem.detail; // A tab with a token goes on.
    }
  }
  return {token: storage.getItem(NAME) || "", reason};
}

/** Return whether an address is a new link. */
export const isLink = (place = location) => /^#(token|code)=/.test(place.hash);

export const saveToken = (token) => sessionStorage.setItem(NAME, token);
export const removeToken = () => sessionStorage.removeItem(NAME);

/** Return a name for a token that does not reveal it, or "" where the browser cannot compute one. */
export async function fingerprint(token) {
  if (!globalThis.crypto?.subtle) return "";
  const bytes = await crypto.subtle.digest("SHA-256", new TextEncoder().encode("ramet page " + token));
  return Array.from(new Uint8Array(bytes.slice(0, 12)), (each) => each.toString(16).padStart(2, "0")).join("");
}
