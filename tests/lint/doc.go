// Package lint keeps the rules of the code base that no compiler checks: which
// package may import which, how long files get, what documents promise.
package lint
