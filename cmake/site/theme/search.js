// Finds the pages and public names that have every word of the search field: a name that is the word, then pages with
// the words in their titles, then names and other pages, sources last.
(function () {
  var field = document.getElementById("search"), list = document.getElementById("found");

  function rank(page, words) {
    var title = page.title.toLowerCase(), text = page.text.toLowerCase(), sum = 0;
    var most = /^source\/(?!README)/.test(page.url) ? 3 : 10;
    for (var i = 0; i < words.length; i++) {
      var count = text.split(words[i]).length - 1, named = title.indexOf(words[i]) >= 0;
      if (!count && !named) return 0;
      sum += Math.min(count, most) + (!named ? 0 : title === words[i] ? 1000 : page.name ? 9 : 100);
    }
    return sum;
  }

  function entry(page, word) {
    var item = document.createElement("li"), link = document.createElement("a"), about = document.createElement("small");
    var at = page.text.toLowerCase().indexOf(word);
    link.href = root + "/" + page.url;
    link.textContent = page.title;
    about.textContent = page.name ? page.text.slice(0, 90) : at < 0 ? "" : "… " + page.text.slice(Math.max(0, at - 30), at + 60) + " …";
    item.append(link, about);
    return item;
  }

  function search() {
    var words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    var found = !words.length ? [] : texts.map(function (page) { return [rank(page, words), page]; })
      .filter(function (pair) { return pair[0] > 0; }).sort(function (a, b) { return b[0] - a[0]; });
    list.replaceChildren.apply(list, found.slice(0, 12).map(function (pair) { return entry(pair[1], words[0]); }));
    if (words.length && !found.length) list.textContent = "Nothing found.";
    list.hidden = !words.length;
  }

  field.addEventListener("input", search);
  // index.html?search=WORDS
  field.value = new URLSearchParams(location.search).get("search") || "";
  search();
  if (matchMedia("(max-width: 50em)").matches) document.getElementById("pages").open = false;
})();
