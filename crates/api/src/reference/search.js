
"use strict";
// Hides every operation and document that does not contain all words of the search field.
const field = document.getElementById("search");
const none = document.getElementById("nothing-found");
const texts = new Map();
for (const article of document.querySelectorAll("article")) {
  const parts = Array.from(article.querySelectorAll("h3, p, td"), (part) => part.textContent);
  texts.set(article.id, parts.join(" ").toLowerCase());
}
function search() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (id) => words.every((word) => texts.get(id).includes(word));
  let found = 0;
  for (const article of document.querySelectorAll("article")) {
    article.hidden = !matches(article.id);
    found += article.hidden ? 0 : 1;
  }
  for (const item of document.querySelectorAll("nav li")) {
    item.hidden = !matches(item.firstElementChild.hash.slice(1));
  }
  for (const group of document.querySelectorAll("nav details, main section")) {
    group.hidden = !group.querySelector("li:not([hidden]), article:not([hidden])");
  }
  none.hidden = found > 0;
}
field.hidden = false;
field.addEventListener("input", search);
// A link to something that the search hides ends the search.
window.addEventListener("hashchange", () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target && target.closest("[hidden]")) {
    field.value = "";
    search();
    target.scrollIntoView();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== field) {
    event.preventDefault();
    field.focus();
  }
});
search();
