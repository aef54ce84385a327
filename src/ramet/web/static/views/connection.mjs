// What the page says about the server.
import {html, useEffect, useState} from "../html.mjs";
import {clock} from "../data/format.mjs";
import {brief} from "../data/text.mjs";
import {removeToken, saveToken} from "../data/token.mjs";
import {useNow} from "./hooks.mjs";

export function Connection({state, about}) {
  useNow();
  if (state.kind === "live") {
    return html`<span class="connection live" title=${state.isLeader === false ? "Another tab of this browser reads the changes for this one." : undefined}>
      live${about.kernel === false ? ": journal only, no kernel" : ""}</span>`;
  }
  return html`<span class="connection">${state.kind === "empty" ? "waits for the first run" : "connecting…"}</span>`;
}

/** A line across the page while the server does not answer. */
export function Gone({state, since}) {
  const now = useNow();
  if (state.kind !== "gone" && !since) return null;
  const wait = Math.max(0, Math.ceil(((state.retryAt ?? now) - now) / 1000));
  return html`<p class="gone" role="alert">The server is gone since ${clock(since)}: ${brief(state.detail ?? "", 200)} What you see is as of then.
    ${wait ? ` The next attempt is in ${wait} s.` : " Trying again…"}</p>`;
}

/** The way in without a link. */
export function Locked({reason}) {
  const enter = (event) => {
    event.preventDefault();
    saveToken(event.target.elements.token.value.trim());
    location.reload();
  };
  return html`<main class="locked"><h1>ramet</h1>
    <p role="alert">${reason}</p>
    <p>A link of <code>ramet ui</code> works once: press Enter where it runs for another one. On <code>ramet serve</code> enter the operator's key.</p>
    <form onSubmit=${enter}><label>Key <input name="token" type="password" autocomplete="off" required /></label>
      <button type="submit" class="main">Open</button></form></main>`;
}

/** Log out after `minutes` without a key or a click; while there are any, tell the server at most once a minute. */
export function useIdleLogout(api, minutes, onIdle) {
  const [last] = useState({input: Date.now(), told: 0});
  useEffect(() => {
    if (!minutes) return undefined;
    const hear = () => {
      last.input = Date.now();
      if (last.input - last.told < 60_000) return;
      last.told = last.input;
      api.get("about.json").catch(() => {});
    };
    const kinds = ["keydown", "pointerdown", "wheel"];
    kinds.forEach((kind) => addEventListener(kind, hear, {passive: true}));
    const timer = setInterval(() => {
      if (Date.now() - last.input < minutes * 60_000) return;
      removeToken();
      onIdle(`This tab was logged out after ${minutes} minutes without use.`);
    }, 5_000);
    return () => (clearInterval(timer), kinds.forEach((kind) => removeEventListener(kind, hear)));
  }, [api, minutes]);
}
