// The key of the page: it comes in the fragment of the link, and lives in this tab only.
import {unescaped} from "./text.mjs";

const NAME = "ramet-token";

/** Take the token out of the address, so that no bookmark, screenshot or way back has it; browsers keep the link itself. */
export function takeToken(place = location, storage = sessionStorage) {
  const match = /^#token=([^&]+)/.exec(place.hash);
  if (match) {
    storage.setItem(NAME, unescaped(match[1]));
    history.replaceState(null, "", place.pathname + place.search);
  }
  return storage.getItem(NAME) || "";
}

/** Return whether an address has a token, such as a new link that was opened in this tab. */
export const hasToken = (place = location) => /^#token=/.test(place.hash);

export const saveToken = (token) => sessionStorage.setItem(NAME, token);
export const removeToken = () => sessionStorage.removeItem(NAME);

/** Return a name for a token that does not reveal it, or "" where the browser cannot compute one. */
export async function fingerprint(token) {
  if (!globalThis.crypto?.subtle) return "";
  const bytes = await crypto.subtle.digest("SHA-256", new TextEncoder().encode("ramet page " + token));
  return Array.from(new Uint8Array(bytes.slice(0, 12)), (each) => each.toString(16).padStart(2, "0")).join("");
}
