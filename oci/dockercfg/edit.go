package dockercfg

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// The functions here change one member of a JSON object and leave every other byte of the text as it is:
// the file is its owner's, with an order and a layout of its own.

// document is the text of a JSON object.
type document struct {
	text []byte
}

// object is the place of a JSON object in a document.
type object struct {
	open, close int // of the braces
	members     []member
}

type member struct {
	key                            string
	keyStart, valueStart, valueEnd int
}

// parseDocument checks that text is one JSON object. A text of white space is an empty object.
func parseDocument(text []byte) (*document, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return &document{text: []byte("{}\n")}, nil
	}
	var any json.RawMessage
	if err := json.Unmarshal(text, &any); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			line := 1 + bytes.Count(text[:min(int(syntax.Offset), len(text))], []byte("\n"))
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		return nil, err
	}
	if bytes.TrimSpace(text)[0] != '{' {
		return nil, errors.New("it is not an object in braces")
	}
	return &document{text: text}, nil
}

// root returns the outermost object.
func (d *document) root() object {
	return d.objectAt(bytes.IndexByte(d.text, '{'))
}

// objectAt reads the object whose brace opens at position open. The document is valid JSON.
func (d *document) objectAt(open int) object {
	result := object{open: open}
	decoder := json.NewDecoder(bytes.NewReader(d.text[open:]))
	decoder.UseNumber()
	position := func() int { return open + int(decoder.InputOffset()) }
	decoder.Token() // the brace
	for decoder.More() {
		token, _ := decoder.Token()
		key, _ := token.(string)
		m := member{key: key}
		// Between two members there is white space and at most one comma, so the key is the first quote.
		from := open + 1
		if n := len(result.members); n > 0 {
			from = result.members[n-1].valueEnd
		}
		m.keyStart = from + bytes.IndexByte(d.text[from:], '"')
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			break
		}
		m.valueEnd = position()
		m.valueStart = m.valueEnd - len(value)
		result.members = append(result.members, m)
	}
	end := open + 1
	if n := len(result.members); n > 0 {
		end = result.members[n-1].valueEnd
	}
	result.close = end + bytes.IndexByte(d.text[end:], '}')
	return result
}

// find returns the member called key, nil if there is none. Two of them are an error: programs differ in
// which one they take.
func (o *object) find(key string) (*member, error) {
	var found *member
	for i := range o.members {
		if o.members[i].key != key {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("it has %q twice", key)
		}
		found = &o.members[i]
	}
	return found, nil
}

func (d *document) value(m *member) []byte { return d.text[m.valueStart:m.valueEnd] }

func (d *document) splice(from, to int, insert string) {
	d.text = []byte(string(d.text[:from]) + insert + string(d.text[to:]))
}

// newline is what ends lines in this document.
func (d *document) newline() string {
	if bytes.Contains(d.text, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

// step is the indentation of one level.
func (d *document) step() string {
	if root := d.root(); len(root.members) > 0 {
		if indent, first := d.lineIndent(root.members[0].keyStart); first && indent != "" {
			return indent
		}
	}
	return "    "
}

// lineIndent returns the white space at the beginning of the line of position, and whether nothing else stands before it.
func (d *document) lineIndent(position int) (indent string, first bool) {
	line := string(d.text[bytes.LastIndexByte(d.text[:position], '\n')+1 : position])
	rest := strings.TrimLeft(line, " \t")
	return line[:len(line)-len(rest)], rest == ""
}

// set gives a member of the object o a value, as the last member if it is new. The positions in o are no
// longer valid after it.
func (d *document) set(o object, key string, value any) error {
	existing, err := o.find(key)
	if err != nil {
		return err
	}
	if existing != nil {
		indent, _ := d.lineIndent(existing.keyStart)
		text, err := d.marshal(value, indent)
		if err != nil {
			return err
		}
		d.splice(existing.valueStart, existing.valueEnd, text)
		return nil
	}
	quoted, err := json.Marshal(key)
	if err != nil {
		return err
	}
	if n := len(o.members); n > 0 {
		last := o.members[n-1]
		indent, first := d.lineIndent(last.keyStart)
		if !first { // several members on one line
			text, err := json.Marshal(value)
			if err != nil {
				return err
			}
			d.splice(last.valueEnd, last.valueEnd, fmt.Sprintf(", %s: %s", quoted, text))
			return nil
		}
		text, err := d.marshal(value, indent)
		if err != nil {
			return err
		}
		d.splice(last.valueEnd, last.valueEnd, fmt.Sprintf(",%s%s%s: %s", d.newline(), indent, quoted, text))
		return nil
	}
	outer, _ := d.lineIndent(o.open)
	indent := outer + d.step()
	text, err := d.marshal(value, indent)
	if err != nil {
		return err
	}
	d.splice(o.open+1, o.close, fmt.Sprintf("%s%s%s: %s%s%s", d.newline(), indent, quoted, text, d.newline(), outer))
	return nil
}

func (d *document) marshal(value any, indent string) (string, error) {
	text, err := json.MarshalIndent(value, indent, d.step())
	return strings.ReplaceAll(string(text), "\n", d.newline()), err
}

// remove takes the member m out of the object o with its comma and its line.
func (d *document) remove(o object, m *member) {
	for i := range o.members {
		if &o.members[i] != m {
			continue
		}
		switch {
		case i > 0:
			d.splice(o.members[i-1].valueEnd, m.valueEnd, "")
		case len(o.members) > 1:
			d.splice(m.keyStart, o.members[1].keyStart, "")
		default:
			d.splice(o.open+1, o.close, "")
		}
		return
	}
}
