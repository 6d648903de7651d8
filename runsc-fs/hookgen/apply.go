package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// hooksImport is the package whose functions the hooks call, and hooksName
// the name under which a patched file imports it.
const (
	hooksImport = "runsc-fs/runsc-fs/hooks"
	hooksName   = "blobfshooks"
)

// hook is one insertion.
type hook struct {
	// name appears in the copy and in error messages.
	name string
	// why becomes the comment above the inserted code.
	why string
	// file is relative to the module.
	file string
	// at finds the place.
	at anchor
	// code is inserted on lines of its own; HOOKS stands for the imported
	// package.
	code string
}

// anchor finds the byte offset of a line start in a parsed file.
type anchor interface {
	offset(f *parsedFile) (int, error)
}

// parsedFile is one source file with its syntax tree.
type parsedFile struct {
	fset *token.FileSet
	ast  *ast.File
	src  []byte
}

func parse(name string, src []byte) (*parsedFile, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &parsedFile{fset: fset, ast: tree, src: src}, nil
}

func (f *parsedFile) pos(p token.Pos) int { return f.fset.Position(p).Offset }

// print returns the source of a node in gofmt's form on one line, so that
// patterns do not depend on line breaks.
func (f *parsedFile) print(n ast.Node) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, f.fset, n); err != nil {
		return ""
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// function finds a function "Name" or a method "(*Type).Name".
func (f *parsedFile) function(name string) (*ast.FuncDecl, error) {
	for _, d := range f.ast.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		have := fn.Name.Name
		if fn.Recv != nil && len(fn.Recv.List) == 1 {
			have = "(" + f.print(fn.Recv.List[0].Type) + ")." + have
		}
		if have == name {
			return fn, nil
		}
	}
	return nil, fmt.Errorf("function %s not found", name)
}

// statements calls visit for each statement that stands in a block, case or
// communication clause below n.
func statements(n ast.Node, visit func(ast.Stmt)) {
	ast.Inspect(n, func(n ast.Node) bool {
		var list []ast.Stmt
		switch n := n.(type) {
		case *ast.BlockStmt:
			list = n.List
		case *ast.CaseClause:
			list = n.Body
		case *ast.CommClause:
			list = n.Body
		}
		for _, s := range list {
			visit(s)
		}
		return true
	})
}

// own calls visit for the nodes of a statement that are its own, not those of
// blocks and function literals in it.
func own(s ast.Stmt, visit func(ast.Node)) {
	ast.Inspect(s, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause:
			return false
		}
		if n != nil {
			visit(n)
		}
		return true
	})
}

// funcStart is the first line of a function's body.
type funcStart struct{ function string }

func (a funcStart) offset(f *parsedFile) (int, error) {
	fn, err := f.function(a.function)
	if err != nil {
		return 0, err
	}
	return f.pos(fn.Body.Lbrace) + 1, nil
}

// call names a call in a function: of callee, with firstArg as its first
// argument unless that is empty. beforeCall is the line above the only
// statement with such a call, afterCall the line below it.
type call struct{ function, callee, firstArg string }
type beforeCall call
type afterCall call

func (a beforeCall) offset(f *parsedFile) (int, error) {
	s, err := f.statement(a.function, "that call "+a.callee, call(a).in)
	if err != nil {
		return 0, err
	}
	return f.pos(s.Pos()), nil
}

func (a afterCall) offset(f *parsedFile) (int, error) {
	s, err := f.statement(a.function, "that call "+a.callee, call(a).in)
	if err != nil {
		return 0, err
	}
	return f.pos(s.End()), nil
}

// in says whether n is the call.
func (c call) in(f *parsedFile, n ast.Node) bool {
	e, ok := n.(*ast.CallExpr)
	if !ok || f.print(e.Fun) != c.callee {
		return false
	}
	return c.firstArg == "" || len(e.Args) > 0 && f.print(e.Args[0]) == c.firstArg
}

// afterDefinition is the line below the only statement of a function that
// defines the given variable.
type afterDefinition struct{ function, variable string }

func (a afterDefinition) offset(f *parsedFile) (int, error) {
	s, err := f.statement(a.function, "that define "+a.variable, func(f *parsedFile, n ast.Node) bool {
		d, ok := n.(*ast.AssignStmt)
		return ok && d.Tok == token.DEFINE && len(d.Lhs) == 1 && f.print(d.Lhs[0]) == a.variable
	})
	if err != nil {
		return 0, err
	}
	return f.pos(s.End()), nil
}

// statement finds the only statement of a function in whose own part match
// holds for a node.
func (f *parsedFile) statement(function, what string, match func(*parsedFile, ast.Node) bool) (ast.Stmt, error) {
	fn, err := f.function(function)
	if err != nil {
		return nil, err
	}
	var found []ast.Stmt
	statements(fn.Body, func(s ast.Stmt) {
		matches := false
		own(s, func(n ast.Node) { matches = matches || match(f, n) })
		if matches {
			found = append(found, s)
		}
	})
	if len(found) != 1 {
		return nil, fmt.Errorf("%d statements of %s %s, want 1", len(found), function, what)
	}
	return found[0], nil
}

// switchCase is the place for one more case in the only switch of a function
// over the given expression: above its default clause.
type switchCase struct{ function, over string }

func (a switchCase) offset(f *parsedFile) (int, error) {
	fn, err := f.function(a.function)
	if err != nil {
		return 0, err
	}
	var found []*ast.CaseClause
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		s, ok := n.(*ast.SwitchStmt)
		if !ok || s.Tag == nil || f.print(s.Tag) != a.over {
			return true
		}
		for _, c := range s.Body.List {
			if c := c.(*ast.CaseClause); c.List == nil {
				found = append(found, c)
			}
		}
		return true
	})
	if len(found) != 1 {
		return 0, fmt.Errorf("%d switches over %s with a default clause in %s, want 1", len(found), a.over, a.function)
	}
	return f.pos(found[0].Pos()), nil
}

// structField is the place for one more field of a struct type: above the
// first one.
type structField struct{ typeName string }

func (a structField) offset(f *parsedFile) (int, error) {
	for _, d := range f.ast.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, spec := range g.Specs {
			t := spec.(*ast.TypeSpec)
			st, ok := t.Type.(*ast.StructType)
			if ok && t.Name.Name == a.typeName {
				return f.pos(st.Fields.Opening) + 1, nil
			}
		}
	}
	return 0, fmt.Errorf("struct type %s not found", a.typeName)
}

// mapEntry is the place for one more entry in the only map literal of a function
// that has the given key: above its first one.
type mapEntry struct{ function, key string }

func (a mapEntry) offset(f *parsedFile) (int, error) {
	fn, err := f.function(a.function)
	if err != nil {
		return 0, err
	}
	var found []*ast.CompositeLit
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if lit, ok := n.(*ast.CompositeLit); ok {
			for _, e := range lit.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok && f.print(kv.Key) == a.key {
					found = append(found, lit)
				}
			}
		}
		return true
	})
	if len(found) != 1 {
		return 0, fmt.Errorf("%d literals with the key %s in %s, want 1", len(found), a.key, a.function)
	}
	return f.pos(found[0].Lbrace) + 1, nil
}

// fileEnd is the end of a file, for declarations.
type fileEnd struct{}

func (fileEnd) offset(f *parsedFile) (int, error) { return len(f.src), nil }

// applyAll inserts hooks into the module copy at dir.
func applyAll(dir string, hooks []hook) error {
	byFile := map[string][]hook{}
	var files []string
	for _, h := range hooks {
		if byFile[h.file] == nil {
			files = append(files, h.file)
		}
		byFile[h.file] = append(byFile[h.file], h)
	}
	for _, name := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		src, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("hook %q: %w", byFile[name][0].name, err)
		}
		text, err := apply(name, src, byFile[name])
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// apply returns src with the hooks of one file and the import they need, if any.
func apply(name string, src []byte, hooks []hook) ([]byte, error) {
	f, err := parse(name, src)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	type insertion struct {
		at   int
		text string
	}
	var ins []insertion
	for _, h := range hooks {
		at, err := h.at.offset(f)
		if err != nil {
			return nil, fmt.Errorf("hook %q does not fit %s: %w; see docs/hooks.md", h.name, name, err)
		}
		code := strings.ReplaceAll(strings.TrimSpace(h.code), "HOOKS", hooksName)
		ins = append(ins, insertion{at, "\n// runsc-fs hook " + h.name + ": " + h.why + "\n" + code + "\n"})
	}
	if bytes.Contains(src, []byte(hooksName)) {
		return nil, fmt.Errorf("%s already uses the name %s", name, hooksName)
	}
	// Packages that the hooks' own package imports must not import it.
	if slices.ContainsFunc(hooks, func(h hook) bool { return strings.Contains(h.code, "HOOKS") }) {
		ins = append(ins, insertion{f.importEnd(), fmt.Sprintf("\n\nimport %s %q\n", hooksName, hooksImport)})
	}
	sort.SliceStable(ins, func(i, j int) bool { return ins[i].at < ins[j].at })

	var b bytes.Buffer
	last := 0
	for _, in := range ins {
		b.Write(src[last:in.at])
		b.WriteString(in.text)
		last = in.at
	}
	b.Write(src[last:])
	text, err := format.Source(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%s does not parse with its hooks: %w", name, err)
	}
	return text, nil
}

// importEnd is the offset behind the last import, or behind the package clause.
func (f *parsedFile) importEnd() int {
	end := f.pos(f.ast.Name.End())
	for _, d := range f.ast.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			end = f.pos(g.End())
		}
	}
	return end
}
