// The key of the page. It lives in this tab only.
import {Api} from "./api.mjs";
import {unescaped} from "./text.mjs";

const NAME = "ramet-token";

/** Take the code or token out of the address, so that no bookmark has it; return the token, or why there is none. */
export async function takeToken() {
  const [, kind, text] = /^#(token|code)=([^&]+)/.exec(location.hash) ?? [];
  let reason = "This tab has no token.";
  if (kind) history.replaceState(null, "", location.pathname + location.search);
  if (kind === "token") saveToken(unescaped(text));
  if (kind === "code") {
    try {
      saveToken((await new Api(unescaped(text)).post("session")).token);
    } catch (problem) {
      reason = problem.detail; // A tab with a token goes on.
    }
  }
  return {token: sessionStorage.getItem(NAME) || "", reason};
}

/** Return whether an address is a new link. */
export const isLink = () => /^#(token|code)=/.test(location.hash);

export const saveToken = (token) => sessionStorage.setItem(NAME, token);
export const removeToken = () => sessionStorage.removeItem(NAME);

/** Return bytes as hexadecimal digits. */
export const hex = (bytes) => Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("");

/** Return a name for a token that does not reveal it, or "" where the browser cannot compute one. */
export async function fingerprint(token) {
  const bytes = await globalThis.crypto?.subtle?.digest("SHA-256", new TextEncoder().encode(`ramet page ${token}`));
  return bytes ? hex(new Uint8Array(bytes, 0, 12)) : "";
}
