const EVERY_MS = 5000;

const again = document.querySelector("[data-again]");
if (again) setTimeout(() => location.reload(), 1000 * Number(again.dataset.again));

const live = document.querySelector("[data-refresh]");
const pause = document.querySelector("button.pause");
let paused = false;

async function refresh() {
  if (paused || document.hidden || live.contains(document.activeElement)) return; // take nothing from under a reader
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("[data-refresh]");
    if (fresh) live.replaceChildren(...fresh.childNodes);
  } catch { /* the next round may do better */ }
}

if (live && pause) {
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Updates are paused" : "Pause updates";
  });
  setInterval(refresh, EVERY_MS);
}
