// Play a cast when it comes into view, and again when its button is pressed. A cast is a picture that plays itself once
// when it is loaded; without this script, or with less motion wanted, it shows its last screen.
const wantsMotion = !matchMedia("(prefers-reduced-motion: reduce)").matches;

function play(picture) {
  const times = Number(picture.dataset.times ?? 0) + 1;
  picture.dataset.times = times;
  picture.src = `${picture.src.split("?")[0]}?${times}`;
}

const watcher = new IntersectionObserver(
  (entries) => {
    for (const entry of entries.filter((each) => each.isIntersecting)) {
      watcher.unobserve(entry.target);
      play(entry.target);
    }
  },
  { threshold: 0.5 },
);

for (const picture of wantsMotion ? document.querySelectorAll('img[src$=".cast.svg"]') : []) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "play-cast";
  button.textContent = "Play again";
  button.setAttribute("aria-label", `Play again: ${picture.alt}`);
  button.addEventListener("click", () => play(picture));
  picture.closest("p").after(button);
  watcher.observe(picture);
}
