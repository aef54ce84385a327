// The key of the page: it comes in the fragment of the link, and lives in this tab only.
import {unescaped} from "./text.mjs";

const NAME = "ramet-token";

/** Take the token out of the address, so that no bookmark, screenshot or way back has it; browsers keep the link itself. */
export function takeToken() {
  const match = /^#token=([^&]+)/.exec(location.hash);
  if (match) {
    saveToken(unescaped(match[1]));
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem(NAME) || "";
}

/** Return whether an address has a token, such as a new link that was opened in this tab. */
export const hasToken = () => /^#token=/.test(location.hash);

export const saveToken = (token) => sessionStorage.setItem(NAME, token);
export const removeToken = () => sessionStorage.removeItem(NAME);

/** Return bytes as hexadecimal digits. */
export const hex = (bytes) => Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("");

/** Return a name for a token that does not reveal it, or "" where the browser cannot compute one. */
export async function fingerprint(token) {
  const bytes = await globalThis.crypto?.subtle?.digest("SHA-256", new TextEncoder().encode(`ramet page ${token}`));
  return bytes ? hex(new Uint8Array(bytes, 0, 12)) : "";
}
