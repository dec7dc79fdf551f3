#!/usr/bin/env bash
# The same script predicted in two commits of a checkout, and what differs as a comment for a pull request.
# Takes SCRIPT, OPTIONS, BASE and MAX_GROWTH; ends with 1 where the peak grew by more than that.
set -euo pipefail

work=$(mktemp -d)
before=$work/before
trap 'git worktree remove --force "$before" 2>/dev/null || true' EXIT
git worktree add --quiet --detach "$before" "$BASE"

predicted() { # in which folder, and where to
  (cd "$1" && eval "python -m memviz predict $OPTIONS -o '$2' $SCRIPT") >"$2.log" 2>&1 || {
    status=$?
    tail -n 40 "$2.log" >&2
    echo "memviz could not predict $SCRIPT in $1 (status $status)." >&2
    return 2
  }
}

predicted "$before" "$work/base.pickle" || exit 2
predicted "$PWD" "$work/head.pickle" || exit 2

grown=0
python -m memviz diff "$work/base.pickle" "$work/head.pickle" --markdown \
  ${MAX_GROWTH:+--max-growth "$MAX_GROWTH"} >"$work/comment.md" || grown=$?
cat "$work/comment.md" >>"${GITHUB_STEP_SUMMARY:-/dev/stdout}"
echo "comment=$work/comment.md" >>"${GITHUB_OUTPUT:-/dev/null}"
exit "$grown"
