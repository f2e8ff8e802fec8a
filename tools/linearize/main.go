// linearize judges a history of what clients have asked and were answered: whether one server could have said all that, one request
// after the other (Herlihy and Wing 1990). Porcupine decides.
//
//	linearize history.jsonl
//
// Each line is one request, as JSON: {"client":0,"key":"r1","op":"set","arguments":["7"],"answer":"OK","begin_ns":1,"end_ns":9}.
// What it is about is a register (set, get, incr), a list (push, all) or accounts (open, transfer, balances), by its key; keys have
// nothing to do with each other. Exit code 0: linearizable. 1: not, and history.jsonl.html shows where. 2: it cannot be told.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// It is not known by then.
const timeout = 100 * time.Second

// A state that nothing was done to.
const nothing = "nothing"

type request struct {
	Client    int      `json:"client"`
	Key       string   `json:"key"`
	Op        string   `json:"op"`
	Arguments []string `json:"arguments"`
	Answer    string   `json:"answer"`
	BeginNs   int64    `json:"begin_ns"`
	EndNs     int64    `json:"end_ns"`
}

// step is what one server does: the answer to a request in a state, and the state behind it. States are texts, as answers are.
func step(state string, asked request) (string, string, error) {
	items := func() []string { return strings.Fields(strings.TrimPrefix(state, nothing)) }
	argument := func(at int) string {
		if at < len(asked.Arguments) {
			return asked.Arguments[at]
		}
		return ""
	}
	switch asked.Op {
	case "set", "open":
		return "OK", strings.Join(asked.Arguments, " "), nil
	case "get", "all", "balances":
		return state, state, nil
	case "incr":
		number := 0
		if state != nothing {
			var err error
			if number, err = strconv.Atoi(state); err != nil {
				return "", "", err
			}
		}
		next := strconv.Itoa(number + 1)
		return next, next, nil
	case "push":
		all := append(items(), argument(0))
		return strconv.Itoa(len(all)), strings.Join(all, " "), nil
	case "transfer":
		all := items()
		numbers := [3]int{}
		for at := range numbers {
			number, err := strconv.Atoi(argument(at))
			if err != nil {
				return "", "", err
			}
			numbers[at] = number
		}
		from, to, amount := numbers[0], numbers[1], numbers[2]
		if from >= len(all) || to >= len(all) || from < 0 || to < 0 {
			return "", "", fmt.Errorf("no such account: %v of %q", asked.Arguments, state)
		}
		add := func(account, more int) error {
			has, err := strconv.Atoi(all[account])
			all[account] = strconv.Itoa(has + more)
			return err
		}
		if has, err := strconv.Atoi(all[from]); err != nil || has < amount {
			return "no", state, err
		}
		if err := add(from, -amount); err != nil {
			return "", "", err
		}
		if err := add(to, amount); err != nil {
			return "", "", err
		}
		return "yes", strings.Join(all, " "), nil
	}
	return "", "", fmt.Errorf("what is %q?", asked.Op)
}

func model() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := map[string][]porcupine.Operation{}
			for _, operation := range history {
				key := operation.Input.(request).Key
				byKey[key] = append(byKey[key], operation)
			}
			all := make([][]porcupine.Operation, 0, len(byKey))
			for _, operations := range byKey {
				all = append(all, operations)
			}
			return all
		},
		Init: func() interface{} { return nothing },
		Step: func(state, input, output interface{}) (bool, interface{}) {
			answer, next, err := step(state.(string), input.(request))
			return err == nil && answer == output.(string), next
		},
		DescribeOperation: func(input, output interface{}) string {
			asked := input.(request)
			return fmt.Sprintf("%s %s %s -> %s", asked.Op, asked.Key, strings.Join(asked.Arguments, " "), output)
		},
	}
}

func read(path string) ([]porcupine.Operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	history := []porcupine.Operation{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(history)+1, err)
		}
		history = append(history, porcupine.Operation{
			ClientId: asked.Client, Input: asked, Call: asked.BeginNs, Output: asked.Answer, Return: asked.EndNs,
		})
	}
	return history, lines.Err()
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: linearize history.jsonl")
		os.Exit(2)
	}
	path := os.Args[1]
	history, err := read(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, "linearize:", err)
		os.Exit(2)
	}
	result, info := porcupine.CheckOperationsVerbose(model(), history, timeout)
	switch result {
	case porcupine.Ok:
		fmt.Printf("%d requests are linearizable\n", len(history))
	case porcupine.Unknown:
		fmt.Fprintf(os.Stderr, "it is not known after %v whether %d requests are linearizable\n", timeout, len(history))
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "%d requests are not linearizable: see %s.html\n", len(history), path)
		if err := porcupine.VisualizePath(model(), info, path+".html"); err != nil {
			fmt.Fprintln(os.Stderr, "linearize:", err)
		}
		os.Exit(1)
	}
}
