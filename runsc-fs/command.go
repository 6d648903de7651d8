package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/google/subcommands"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
)

// verb is one command of our own. It prints results to out and leaves errors
// to its caller.
type verb interface {
	// name is the word on the command line.
	name() string
	// synopsis is one line for the list of commands, arguments the part of the
	// usage line behind the name.
	synopsis() string
	arguments() string
	setFlags(f *flag.FlagSet)
	run(ctx context.Context, out io.Writer, args []string) error
}

// usageError is a mistake in the arguments. The usage is added to it.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usagef(text string, args ...any) error { return usageError{fmt.Sprintf(text, args...)} }

// statusError is an error with an exit status of its own.
type statusError struct {
	error
	status int
}

func (e statusError) Unwrap() error { return e.error }

// Exit statuses of our commands. Mistakes that runsc's own parser of flags
// finds end with upstream's 128.
const (
	statusFailed = 1
	statusUsage  = 2
)

// exitStatus returns the status for an error.
func exitStatus(err error) int {
	var own statusError
	var mistake usageError
	switch {
	case errors.As(err, &own):
		return own.status
	case errors.As(err, &mistake):
		return statusUsage
	}
	return statusFailed
}

// command makes a verb one of runsc's commands.
type command struct{ verb }

var _ util.SubCommand = command{}

// Name implements subcommands.Command.
func (c command) Name() string { return c.name() }

// Synopsis implements subcommands.Command.
func (c command) Synopsis() string { return c.synopsis() }

// Usage implements subcommands.Command.
func (c command) Usage() string { return usage(c.verb, "") }

// SetFlags implements subcommands.Command.
func (c command) SetFlags(f *flag.FlagSet) { c.setFlags(f) }

// FetchSpec implements util.SubCommand: no command of ours is about a container.
func (c command) FetchSpec(*config.Config, *flag.FlagSet) (string, *specs.Spec, error) {
	return "", nil, nil
}

// Execute implements subcommands.Command.
func (c command) Execute(ctx context.Context, f *flag.FlagSet, runscArgs ...any) subcommands.ExitStatus {
	args := f.Args()
	var err error
	if _, isGroup := c.verb.(*group); !isGroup { // a group parses the flags of its verbs
		f.SetOutput(io.Discard)
		f.Usage = func() {}
		args, err = getOperands(f)
	}
	if err == nil {
		conf, _ := runscArgs[0].(*config.Config)
		err = c.run(context.WithValue(ctx, configKey{}, conf), os.Stdout, args)
	}
	if err == nil {
		return subcommands.ExitSuccess
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ") // joined errors have a line each
	var mistake usageError
	if errors.As(err, &mistake) {
		text += "; " + strings.TrimSpace(usage(c.verb, ""))
	}
	util.Errorf("runsc-fs: %s", text)
	// runsc ends with this status if the command reports success.
	*runscArgs[1].(*unix.WaitStatus) = unix.WaitStatus(exitStatus(err) << 8)
	return subcommands.ExitSuccess
}

// configKey is where a context has runsc's configuration.
type configKey struct{}

// configOf returns runsc's configuration: the flags before the command.
func configOf(ctx context.Context) *config.Config {
	return ctx.Value(configKey{}).(*config.Config)
}

// optional is a flag whose empty value is a value: a script whose variable is
// not set gets an error, not the default.
type optional struct {
	text  string
	given bool
}

// String implements flag.Value.
func (o *optional) String() string { return o.text }

// Set implements flag.Value.
func (o *optional) Set(text string) error {
	o.text, o.given = text, true
	return nil
}

// Get implements flag.Getter, which runsc expects of its flags.
func (o *optional) Get() any { return o.text }

func usage(v verb, parent string) string {
	words := slices.DeleteFunc([]string{"usage: runsc-fs", parent, v.name(), v.arguments()}, func(w string) bool { return w == "" })
	return strings.Join(words, " ") + "\n"
}

// getOperands returns the arguments that are not flags. Other than the flag
// package it accepts flags behind them.
func getOperands(f *flag.FlagSet) ([]string, error) {
	var operands []string
	for f.NArg() > 0 {
		if strings.HasPrefix(f.Arg(0), "-") && f.Arg(0) != "-" { // what follows "--" is no flag
			return append(operands, f.Args()...), nil
		}
		operands = append(operands, f.Arg(0))
		if err := f.Parse(f.Args()[1:]); err != nil {
			return nil, usagef("%v", err)
		}
	}
	return operands, nil
}

// group is a verb with verbs of its own, such as "volume".
type group struct {
	word, about string
	verbs       []verb
}

func (g *group) name() string           { return g.word }
func (g *group) synopsis() string       { return g.about }
func (g *group) setFlags(*flag.FlagSet) {}

func (g *group) arguments() string {
	names := make([]string, len(g.verbs))
	for i, v := range g.verbs {
		names[i] = v.name()
	}
	return strings.Join(names, "|") + " ..."
}

func (g *group) run(ctx context.Context, out io.Writer, args []string) error {
	if len(args) == 0 || args[0] == "help" {
		return g.help(out)
	}
	i := slices.IndexFunc(g.verbs, func(v verb) bool { return v.name() == args[0] })
	if i < 0 {
		return usagef("%s has no command %q", g.word, args[0])
	}
	v := g.verbs[i]
	f := flag.NewFlagSet(g.word+" "+v.name(), flag.ContinueOnError)
	f.SetOutput(io.Discard)
	v.setFlags(f)
	err := f.Parse(args[1:])
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(out, "%s%s.\n", usage(v, g.word), v.synopsis())
		f.SetOutput(out)
		f.PrintDefaults()
		return nil
	}
	if err != nil {
		return g.misused(v, err)
	}
	operands, err := getOperands(f)
	if err == nil {
		err = v.run(ctx, out, operands)
	}
	var mistake usageError
	if errors.As(err, &mistake) {
		return g.misused(v, err)
	}
	return err
}

// misused adds the usage of one of the verbs to a mistake in its arguments.
func (g *group) misused(v verb, err error) error {
	return statusError{fmt.Errorf("%s %s: %v; %s", g.word, v.name(), err, strings.TrimSpace(usage(v, g.word))), statusUsage}
}

func (g *group) help(out io.Writer) error {
	fmt.Fprintf(out, "runsc-fs %s: %s.\n\n", g.word, g.about)
	for _, v := range g.verbs {
		fmt.Fprintf(out, "  %-68s %s\n", strings.TrimSpace(strings.TrimPrefix(usage(v, g.word), "usage: ")), v.synopsis())
	}
	return nil
}
