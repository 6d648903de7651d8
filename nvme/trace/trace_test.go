package trace

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestStagesSumUp nests stages and adds them up.
func TestStagesSumUp(t *testing.T) {
	if was := Enter(FS); was != None {
		t.Fatalf("Enter without a span returned %v", was)
	}
	began := now()
	span := Begin(VFS)
	if span == nil {
		t.Fatal("no span")
	}
	if Begin(VFS) != nil {
		t.Error("a second span on one goroutine")
	}
	for s := FS; s < Stages; s++ {
		was := Enter(s)
		if was != s-1 {
			t.Errorf("%v interrupts %v", s, was)
		}
		for at := now(); now() == at; {
		}
	}
	for s := Copy; s > VFS; s-- {
		Leave(s - 1)
	}
	times := span.End()
	took := now() - began
	var sum time.Duration
	for s := VFS; s < Stages; s++ {
		if times[s] <= 0 {
			t.Errorf("stage %v took %v", s, times[s])
		}
		sum += times[s]
	}
	if times[None] != 0 || sum > took {
		t.Errorf("stages %v, in all %v, of %v", times, sum, took)
	}
	if active.Load() != 0 {
		t.Errorf("%d spans are left", active.Load())
	}
}

// TestSpansBelongToGoroutines has many goroutines, some with spans, move between threads.
func TestSpansBelongToGoroutines(t *testing.T) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	spans := 0
	for n := range 100 {
		wg.Go(func() {
			var span *Span
			if n%2 == 0 {
				span = Begin(VFS)
			}
			stage := Stage(n)%(Stages-FS) + FS
			for range 100 {
				was := Enter(stage)
				if (was != None) != (span != nil) {
					t.Errorf("goroutine %d entered %v from %v; it has a span: %v", n, stage, was, span != nil)
					return
				}
				runtime.Gosched()
				Leave(was)
			}
			if span == nil {
				return
			}
			for s, d := range span.End() {
				if d != 0 && Stage(s) != VFS && Stage(s) != stage {
					t.Errorf("the span of goroutine %d has %v of %v", n, d, Stage(s))
				}
			}
			mu.Lock()
			spans++
			mu.Unlock()
		})
	}
	wg.Wait()
	if spans == 0 || active.Load() != 0 {
		t.Errorf("%d spans were, %d are left", spans, active.Load())
	}
}

func TestStripe(t *testing.T) {
	for _, n := range []int{1, 8, 64} {
		if s := Stripe(n); s < 0 || s >= n {
			t.Errorf("stripe %d of %d", s, n)
		}
	}
}

func TestMarksAllocateNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() {
		span := Begin(VFS)
		Leave(Enter(Copy))
		span.End()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkMark is what each mark costs: without spans, with one of somebody else,
// and with one.
func BenchmarkMark(b *testing.B) {
	b.Run("off", func(b *testing.B) {
		for b.Loop() {
			Leave(Enter(Copy))
		}
	})
	b.Run("other", func(b *testing.B) {
		began, end := make(chan struct{}), make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			span := Begin(VFS)
			close(began)
			<-end
			span.End()
		})
		<-began
		for b.Loop() {
			Leave(Enter(Copy))
		}
		close(end)
		wg.Wait()
	})
	b.Run("on", func(b *testing.B) {
		span := Begin(VFS)
		for b.Loop() {
			Leave(Enter(Copy))
		}
		span.End()
	})
}
