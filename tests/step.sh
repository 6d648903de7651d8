#!/bin/sh
# usage: tests/step.sh NAME COMMAND...
# Runs one step of make test: says how long it took, and fails if the step fails or
# leaves files in the tree that git sees.
set -eu
cd "$(dirname "$0")/.."
name=$1
shift

tree() {
	git status --porcelain --untracked-files=all 2>/dev/null || echo 'no git'
}

before=$(tree)
begin=$(date +%s)
printf '==== %s\n' "$name"
status=0
"$@" || status=$?
elapsed=$(($(date +%s) - begin))
if [ $status -ne 0 ]; then
	printf '==== %s FAILED after %d s\n' "$name" $elapsed >&2
	exit $status
fi
after=$(tree)
if [ "$before" != "$after" ]; then
	printf '==== %s changed the tree:\nbefore:\n%s\nafter:\n%s\n' "$name" "$before" "$after" >&2
	exit 1
fi
printf '==== %s done in %d s\n' "$name" $elapsed
