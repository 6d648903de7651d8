// Command hookgen makes the copy of gVisor that runsc-fs is linked with.
//
// Upstream's runsc has no place to plug in a sentry file system, and the Go
// tool refuses overlays for files of the module cache. So hookgen copies the
// module that go.mod pins into the build directory, inserts calls of package
// hooks (the table in table.go) and writes a go.mod that replaces the module
// by the copy. Nothing of gVisor enters this repository.
//
// An insertion is anchored in the syntax tree: a function and a statement in
// it. An anchor that is missing, or that matches twice, stops the build with
// the name of the hook; nothing is ever skipped.
//
// Usage:
//
//	hookgen [-root DIR] [-out DIR]
//
// The copy is made only when the module version, the hook table or hookgen
// itself has changed since the last run.
package main
