#!/usr/bin/env bash
# The same script predicted in two commits of a checkout, and what differs as a comment for a pull request and a page.
# Takes SCRIPT, OPTIONS, BASE, MAX_GROWTH and LINK; ends with 1 where the peak grew by more than that.
set -euo pipefail

work=$(mktemp -d)
before=$work/before
trap 'git worktree remove --force "$before" 2>/dev/null || true' EXIT
git rev-parse --verify --quiet "$BASE^{commit}" >/dev/null || {
  echo "memviz: $BASE is not in this checkout. Check out with fetch-depth: 0, or name another base." >&2
  exit 2
}
git worktree add --quiet --detach "$before" "$BASE"

predicted() { # in which folder, where to, and which commit that is
  (cd "$1" && eval "python -m memviz predict $OPTIONS -o '$2' $SCRIPT") >"$2.log" 2>&1 || {
    status=$?
    tail -n 40 "$2.log" >&2
    echo "memviz could not predict $SCRIPT $3 (status $status)." >&2
    return 2
  }
}

told() { # the comment, and where it and the page lie
  cat "$work/comment.md" >>"${GITHUB_STEP_SUMMARY:-/dev/stdout}"
  printf 'comment=%s\npage=%s\n' "$work/comment.md" "$work/memory.html" >>"${GITHUB_OUTPUT:-/dev/null}"
}

file=${SCRIPT%% *}
if [[ -e $file && ! -e $before/$file ]]; then
  predicted "$PWD" "$work/head.pickle" "as it is now" || exit 2
  python -m memviz report "$work/head.pickle" -o "$work/memory.html"
  {
    printf '`%s` is new here: %s has nothing to compare it with.\n\n```\n' "$file" "$BASE"
    python -m memviz summary "$work/head.pickle"
    printf '```\n%s' "${LINK:+
[Open it in memviz]($LINK)
}"
  } >"$work/comment.md"
  told
  exit 0
fi

predicted "$before" "$work/base.pickle" "before, in $BASE" || exit 2
predicted "$PWD" "$work/head.pickle" "as it is now" || exit 2

python -m memviz report "$work/base.pickle" "$work/head.pickle" -o "$work/memory.html"
grown=0
python -m memviz diff "$work/base.pickle" "$work/head.pickle" --markdown ${LINK:+--link "$LINK"} \
  ${MAX_GROWTH:+--max-growth "$MAX_GROWTH"} >"$work/comment.md" || grown=$?
told
exit "$grown"
