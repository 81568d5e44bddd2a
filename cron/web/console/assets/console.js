// Updates the parts of a page that are marked with data-live, when the replica says that there is
// something new. Without this script the pages work the same; they are reloaded by hand.
"use strict";

(() => {
  const LEAST_MS = 2000; // between two updates
  const SHARE = 20; // an update may take one part in so many of the replica's time
  const AGAIN_MS = 15000; // until the next try, after a refusal
  const OPEN_MS = 4000; // between two updates of a page with a launch that is not over

  let shownIndex = null; // the newest entry that this page was told of
  let isDue = false;
  let isBusy = false;
  let restUntil = 0;
  let timer = 0;
  let freshAt = Date.now(); // when the page was as the replica knew it
  let isLost = false; // whether the replica does not answer

  // Say below the page's head how the page is kept up to date.
  function say(text) {
    const place = document.getElementById("live");
    if (place) {
      place.hidden = !text;
      place.textContent = text;
    }
  }

  // Say that the replica does not answer, how old the page is, and where to go on.
  function sayAge() {
    const place = document.getElementById("stale");
    if (place) {
      place.hidden = !isLost;
      const seconds = Math.round((Date.now() - freshAt) / 1000);
      document.getElementById("age").textContent = seconds < 120 ? seconds + " s" : Math.round(seconds / 60) + " min";
    }
  }

  function setLost(lost) {
    isLost = lost;
    sayAge();
  }

  // Let texts such as "5 s ago" go on, as texts.ago of the replica writes them.
  const skewMs = Number(document.body.dataset.now) - Date.now();

  function inWords(ms) {
    const seconds = Math.round(ms / 1000);
    const units = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
    for (const [size, unit, under, smaller] of units) {
      if (seconds >= size) {
        const rest = Math.floor((seconds % size) / under);
        return Math.floor(seconds / size) + " " + unit + (rest ? " " + rest + " " + smaller : "");
      }
    }
    return (ms < 10000 ? (ms / 1000).toFixed(1) : seconds) + " s";
  }

  function moveTimes() {
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const passed = Date.now() + skewMs - Number(time.dataset.ago);
      const words = Math.abs(passed) < 1000 ? "now" : passed > 0 ? inWords(passed) + " ago" : "in " + inWords(-passed);
      if (time.textContent !== words) {
        time.textContent = words;
      }
    }
  }

  // A launch that runs prints without an entry in the log, which is what a page is told of.
  function followOpen() {
    if (document.querySelector("[data-open]") && !isLost && performance.now() > restUntil + OPEN_MS) {
      isDue = true;
      plan();
    }
  }

  // A form that somebody fills in, or has ticked, is left alone but for its rows.
  function isInUse(part) {
    const focused = document.activeElement;
    const isTyping = focused && part.contains(focused) && focused.matches("input:not([type=checkbox]), select, textarea");
    return isTyping || part.querySelector("details[open]") !== null;
  }

  function replace(part, fresh) {
    const ticked = new Set();
    for (const box of part.querySelectorAll("input[type=checkbox]:checked")) {
      ticked.add(box.name + " " + box.value);
    }
    const focused = document.activeElement;
    const address = focused && part.contains(focused) ? focused.getAttribute("href") : null;
    const scrolled = [...part.querySelectorAll(".wide, pre")].map((one) => [one.scrollLeft, one.scrollTop]);
    part.replaceChildren(...fresh.childNodes);
    for (const box of part.querySelectorAll("input[type=checkbox]")) {
      box.checked = ticked.has(box.name + " " + box.value);
    }
    [...part.querySelectorAll(".wide, pre")].forEach((one, place) => {
      if (scrolled[place]) {
        [one.scrollLeft, one.scrollTop] = scrolled[place];
      }
    });
    if (address) {
      const same = [...part.querySelectorAll("a[href]")].find((one) => one.getAttribute("href") === address);
      if (same) {
        same.focus({ preventScroll: true });
      }
    }
  }

  async function update() {
    isDue = false;
    isBusy = true;
    const beganMs = performance.now();
    const began = Date.now();
    try {
      const address = new URL(location.href);
      address.searchParams.delete("done");
      address.searchParams.delete("count");
      address.hash = "";
      const answer = await fetch(address, { headers: { accept: "text/html" }, redirect: "error" });
      if (answer.status === 401) {
        location.reload(); // the session is over: the sign-in page says why
        return;
      }
      if (!answer.ok) {
        say("not up to date: the replica answered " + answer.status);
        restUntil = performance.now() + AGAIN_MS;
        isDue = true;
        return;
      }
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const other = fresh.getElementById(part.id);
        if (other && !isInUse(part)) {
          replace(part, other);
        }
      }
      freshAt = began;
      setLost(false);
      say("kept up to date");
    } catch (error) {
      say("not up to date");
      setLost(true);
      isDue = true;
    } finally {
      isBusy = false;
      const took = performance.now() - beganMs;
      restUntil = Math.max(restUntil, performance.now() + Math.max(LEAST_MS, SHARE * took));
      plan();
    }
  }

  function plan() {
    clearTimeout(timer);
    if (isDue && !isBusy && !document.hidden) {
      timer = setTimeout(update, Math.max(0, restUntil - performance.now()));
    }
  }

  function listen() {
    const source = new EventSource("/events");
    source.onmessage = (event) => {
      const news = JSON.parse(event.data);
      const what = news.index + " " + news.term + " " + news.leader + " " + news.warning;
      if (shownIndex !== null && shownIndex !== what) {
        isDue = true;
        plan();
      } else if (shownIndex === null) {
        say("kept up to date");
      }
      if (isLost) {
        isDue = true;
        plan();
      }
      shownIndex = what;
    };
    source.onerror = () => {
      say("not up to date: the connection is lost");
      if (shownIndex !== null && !isDue && !isBusy && !isLost) {
        freshAt = Date.now(); // until now it would have been told of anything new
      }
      shownIndex = shownIndex === null ? null : "";
      // A replica that is gone is not kept from its work: no rest is due.
      restUntil = Math.min(restUntil, performance.now() + LEAST_MS);
      if (source.readyState === EventSource.CLOSED) {
        setTimeout(listen, AGAIN_MS); // too many pages are kept up to date
      } else {
        isDue = true; // the next update tells whether the replica answers
        plan();
      }
    };
  }

  document.addEventListener("visibilitychange", plan);
  setInterval(() => isLost && sayAge(), 1000);
  setInterval(moveTimes, 1000);
  if (document.querySelector("[data-live]") && document.body.dataset.isLive === "yes") {
    listen();
    setInterval(followOpen, 1000);
  }
})();
