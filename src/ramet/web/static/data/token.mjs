// The key of the page: the fragment of the link has a code for it, or itself. It lives in this tab only.
import {Api} from "./api.mjs";
import {unescaped} from "./text.mjs";

const NAME = "ramet-token";

/** Take the token out of the address, so that no bookmark, screenshot or way back has it; browsers keep the link itself. */
export async function takeToken(place = location, storage = sessionStorage) {
  const [, kind, text] = /^#(token|code)=([^&]+)/.exec(place.hash) ?? [];
  let reason = "This tab has no token.";
  if (kind) history.replaceState(null, "", place.pathname + place.search);
  if (kind === "token") storage.setItem(NAME, unescaped(text));
  if (kind === "code") {
    try {
      storage.setItem(NAME, (await new Api(unescaped(text)).post("session")).token);
    } catch (problem) {
      reason = problem.detail; // A tab that has a token, of an earlier link, goes on with it.
    }
  }
  return {token: storage.getItem(NAME) || "", reason};
}

/** Return whether an address is a new link, which was opened in this tab. */
export const isLink = (place = location) => /^#(token|code)=/.test(place.hash);

export const saveToken = (token) => sessionStorage.setItem(NAME, token);
export const removeToken = () => sessionStorage.removeItem(NAME);

/** Return a name for a token that does not reveal it, or "" where the browser cannot compute one. */
export async function fingerprint(token) {
  if (!globalThis.crypto?.subtle) return "";
  const bytes = await crypto.subtle.digest("SHA-256", new TextEncoder().encode("ramet page " + token));
  return Array.from(new Uint8Array(bytes.slice(0, 12)), (each) => each.toString(16).padStart(2, "0")).join("");
}
