const told = JSON.parse(document.getElementById("specs").textContent);
const views = [];
let picked = "";

function pick(view) {
  try { view.signal("picked", picked).runAsync(); } catch { /* this chart draws no schedulers */ }
}

async function draw(live) {
  const name = live.dataset.chart;
  const spec = { ...told.charts[name], config: told.config };
  if (spec.width === "container" && !live.clientWidth) spec.width = 760; // inside something closed
  try {
    const made = await vegaEmbed(live, spec, {
      mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false,
      tooltip: { disableDefaultStyle: true },
    });
    live.classList.add("drawn");
    views.push(made.view);
    pick(made.view);
  } catch (error) {
    live.textContent = "This chart can't be drawn; the tables hold its numbers.";
    console.error(name, error);
  }
}

(async () => {
  for (const live of document.querySelectorAll(".live")) {
    await draw(live);
    await new Promise((done) => setTimeout(done)); // let the page answer in between
  }
  document.documentElement.dataset.drawn = "all";
})();

for (const button of document.querySelectorAll("button.pick")) {
  button.disabled = false;
  button.addEventListener("click", () => {
    picked = picked === button.dataset.scheduler ? "" : button.dataset.scheduler;
    for (const other of document.querySelectorAll("button.pick")) {
      other.setAttribute("aria-pressed", String(other.dataset.scheduler === picked));
    }
    views.forEach(pick);
  });
}

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.of).textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch {
      getSelection().selectAllChildren(document.getElementById(button.dataset.of));
      button.textContent = "Selected: copy it";
    }
  });
}
