package nvme_test

import (
	"strings"
	"testing"

	"runsc-fs/nvme"
	"runsc-fs/nvme/nvmetest"
	"runsc-fs/nvme/soft"
	"runsc-fs/nvme/spec"
)

// TestWarningsAreLoggedOnce: a condition that lasts is not logged again, one that comes
// back is.
func TestWarningsAreLoggedOnce(t *testing.T) {
	s := newSpoof(t, 1<<20, soft.Options{}, nil)
	var log lines
	var events nvmetest.EventLog
	ns, _, _ := openSpoof(t, s, nvme.Options{Logf: log.logf, OnEvent: events.Add, EventInterval: -1})
	hot := soft.Health{TemperatureKelvin: 350, SparePercent: 100}
	worn := soft.Health{TemperatureKelvin: 350, SparePercent: 4}
	cool := soft.Health{TemperatureKelvin: 300, SparePercent: 4}
	for _, step := range []struct {
		health soft.Health
		info   uint8
	}{
		{hot, spec.HealthTemperature},
		{hot, spec.HealthTemperature},
		{worn, spec.HealthSpare},
		{cool, spec.HealthSpare},
		{worn, spec.HealthTemperature},
	} {
		s.SetHealth(step.health)
		events.Wait(t, ns.Controller(), spec.EventTypeHealth, step.info)
		ns.Controller().PollEvents()
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	text := strings.Join(log.all, "\n")
	for what, want := range map[string]int{"temperature is beyond a threshold": 2, "spare is 4 %": 1} {
		if n := strings.Count(text, what); n != want {
			t.Errorf("%q was logged %d times, not %d:\n%s", what, n, want, text)
		}
	}
}
