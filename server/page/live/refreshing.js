// Refreshes the open panels every second, while the page is visible.

const EVERY_MS = 1000;
const PAUSES = 5;  // a slow server is asked less often, because it is busy
const MOST_MS = 10000;
let timer = 0, looking = false, again = false, goneSince = null;

function lookSoon(ms) {
  if (looking && ms === 0) again = true;
  clearTimeout(timer);
  timer = setTimeout(look, ms);
}

function gone(isGone) {
  if (isGone && goneSince === null) goneSince = new Date();
  if (!isGone && goneSince !== null) {
    goneSince = null;
    say("The server is back.");
  }
  const place = byId("gone");
  place.hidden = !isGone;
  const top = drawer.open ? drawer.querySelector(".top") : document.querySelector("header");  // not behind the drawer
  if (place.parentElement !== top) top.prepend(place);
  if (isGone) put(place, `The server has not answered since ${goneSince.toLocaleTimeString("en-GB")}. Still trying.`);
  main.classList.toggle("stale", isGone);
  document.title = isGone ? "segstore: gone" : "segstore";
}

async function look() {
  if (looking || document.hidden) return;
  looking = true;
  again = false;
  const began = performance.now();
  try {
    await lookAtServer();
    byId("token").hidden = true;
    const active = Array.from(panels.values()).filter((panel) => panel.isActive());
    const isWaiting = opened !== null && drawer.dataset.waits;  // a request without a reply is requested again
    await Promise.all([...active.map((panel) => panel.look()), isWaiting && lookAtRequest(opened)]);
    gone(false);
  } catch (error) {
    if (error instanceof Locked) {
      byId("token").hidden = false;
      gone(false);
      return;
    }
    if (!(error instanceof Gone)) {
      say(`This page has failed: ${error.message}`, true);
      throw error;
    }
    gone(true);
  } finally {
    looking = false;
    const took = performance.now() - began;
    lookSoon(again ? 0 : Math.min(MOST_MS, Math.max(EVERY_MS, PAUSES * took) - took));
  }
}

onSubmit(byId("token"), () => {
  sessionStorage.setItem("token", byId("token").elements.token.value.trim());
  byId("token").reset();
  lookSoon(0);
});
document.addEventListener("visibilitychange", () => lookSoon(0));
followAddress();
look();
