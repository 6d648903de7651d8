package lab

import (
	"context"
	"fmt"
	"time"
)

// pollInterval is the pause between two looks at a condition.
const pollInterval = 50 * time.Millisecond

// WaitFor looks at done until it says true, returns an error, or timeout has
// passed. what names the awaited condition in the error.
func WaitFor(ctx context.Context, what string, timeout time.Duration, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		ok, err := done()
		if err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %v for %s in vain: %w", timeout, what, ctx.Err())
		case <-tick.C:
		}
	}
}
