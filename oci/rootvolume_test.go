package oci

import (
	"reflect"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// TestWithRootVolume has who wins: a mount that is there, the annotation, the flag.
func TestWithRootVolume(t *testing.T) {
	proc := specs.Mount{Type: "proc", Source: "proc", Destination: "/proc"}
	root := func(name string) specs.Mount { return specs.Mount{Type: "blobfs", Source: name, Destination: "/"} }
	annotated := map[string]string{RootVolumeAnnotation: "a"}
	for _, c := range []struct {
		spec specs.Spec
		flag string
		want []specs.Mount
	}{
		{specs.Spec{Mounts: []specs.Mount{proc}}, "", []specs.Mount{proc}},
		{specs.Spec{Mounts: []specs.Mount{proc}}, "f", []specs.Mount{root("f"), proc}},
		{specs.Spec{Mounts: []specs.Mount{proc}, Annotations: annotated}, "f", []specs.Mount{root("a"), proc}},
		{specs.Spec{Mounts: []specs.Mount{proc, root("m")}, Annotations: annotated}, "f", []specs.Mount{proc, root("m")}},
	} {
		before := len(c.spec.Mounts)
		got := WithRootVolume(&c.spec, c.flag)
		if !reflect.DeepEqual(got.Mounts, c.want) {
			t.Errorf("flag %q, annotations %v: %v, expected %v", c.flag, c.spec.Annotations, got.Mounts, c.want)
		}
		if len(c.spec.Mounts) != before {
			t.Error("the caller's specification was changed")
		}
	}
}

// TestRootVolumeElsewhere has the same volume on the root directory and below it.
func TestRootVolumeElsewhere(t *testing.T) {
	reg := newRegistry(t, "v", "w")
	mount := func(name, destination string) specs.Mount {
		return specs.Mount{Type: "blobfs", Source: name, Destination: destination}
	}
	if _, err := ResolveMounts(&specs.Spec{Mounts: []specs.Mount{mount("v", "/"), mount("w", "/d")}}, reg); err != nil {
		t.Error(err)
	}
	_, err := ResolveMounts(&specs.Spec{Mounts: []specs.Mount{mount("v", "/d"), mount("v", "//")}}, reg)
	if err == nil || !strings.Contains(err.Error(), `mount /d: volume "v" is the root volume of the container`) {
		t.Errorf("error %v", err)
	}
}
