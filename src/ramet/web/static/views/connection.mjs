// What the page says about the server: whether it answers, since when not, and when the page tries again.
import {brief, clock, html, useEffect, useListener, useNow, useState} from "./words.mjs";
import {removeToken, saveToken} from "../data/token.mjs";

export function Connection({state, about}) {
  useNow();
  const isLive = state.kind === "live";
  return html`<span class=${`connection ${isLive ? "live" : ""}`} title=${isLive && state.isLeader === false ? "Another tab of this browser reads the changes for this one." : null}>
    ${isLive ? (about.kernel ? "live" : "live: journal only, no kernel") : state.kind === "empty" ? "waits for the first run" : "connecting…"}</span>`;
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
  last.minutes = minutes;
  for (const kind of ["keydown", "pointerdown", "wheel"]) useListener(kind, () => {
    last.input = Date.now();
    if (!last.minutes || last.input - last.told < 60_000) return;
    last.told = last.input;
    api.get("about.json").catch(() => {});
  });
  useEffect(() => {
    const timer = minutes && setInterval(() => {
      if (Date.now() - last.input < minutes * 60_000) return;
      removeToken();
      onIdle(`This tab was logged out after ${minutes} minutes without use.`);
    }, 5_000);
    return () => clearInterval(timer);
  }, [minutes]);
}
