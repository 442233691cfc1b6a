// Ask asks a mesh one question over gRPC and prints the names of the events, the answer and who was shown as JSON.
//
//	ask 127.0.0.1:7070 demo "How often should I oil my chain?"
//
// The address is that of the orchestrator. EVENMESH_API_KEY is the key or token to call with, EVENMESH_TLS_CA the file
// of the authorities that the mesh's certificates come from; without it there is no TLS.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	commonv1 "example.com/evenmesh/gen/evenmesh/common/v1"
	orchestratorv1 "example.com/evenmesh/gen/evenmesh/orchestrator/v1"
)

// maxMessageBytes is the largest message either way, the default of the services. gRPC's own is 4 MiB.
const maxMessageBytes = 32 << 20

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: ask ADDRESS COLLECTION QUESTION")
		os.Exit(2)
	}
	// A deadline travels with the call. When it is over, or the context is cancelled, the model is free.
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	if err := ask(ctx, os.Args[1], os.Args[2], os.Args[3]); err != nil {
		if _, ok := status.FromError(err); !ok {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		printJSON(failureOf(err))
	}
}

// ask asks one question, with four sampled rankings, and prints what comes back.
func ask(ctx context.Context, address, collection, question string) error {
	connection, err := connect(address)
	if err != nil {
		return err
	}
	defer connection.Close()
	stream, err := orchestratorv1.NewOrchestratorServiceClient(connection).Ask(ctx, &orchestratorv1.AskRequest{
		Question: question,
		Source:   &orchestratorv1.AskRequest_Collection{Collection: collection},
		Sampling: &commonv1.Sampling{
			Alpha:       proto.Float64(2),
			NumRankings: proto.Uint32(4),
			Seed:        proto.Uint64(11),
		},
		SkipObservation: true,
	})
	if err != nil {
		return err
	}
	var seen []string
	var text strings.Builder
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if name := eventName(response); len(seen) == 0 || seen[len(seen)-1] != name {
			seen = append(seen, name)
		}
		switch event := response.Event.(type) {
		case *orchestratorv1.AskResponse_Delta:
			text.WriteString(event.Delta.Text)
		case *orchestratorv1.AskResponse_Report:
			shares := map[string]float64{}
			for _, provider := range event.Report.Providers {
				shares[provider.Name] = provider.Share
			}
			printJSON(map[string]interface{}{"shares": shares, "disparity": event.Report.EeDNorm})
		}
	}
	printJSON(map[string]interface{}{"seen": seen, "text": text.String()})
	return nil
}

// connect opens a connection to a service, which connects at the first call.
func connect(address string) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{grpc.WithDefaultCallOptions(
		grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes),
	)}
	file := os.Getenv("EVENMESH_TLS_CA")
	if file == "" {
		options = append(options, grpc.WithInsecure())
	} else {
		authorities, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(authorities) {
			return nil, errors.New("EVENMESH_TLS_CA must name a file with certificates in PEM")
		}
		options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))
	}
	if key := os.Getenv("EVENMESH_API_KEY"); key != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer{key: key, overTLS: file != ""}))
	}
	return grpc.Dial(address, options...)
}

// bearer sends a key or token with every call.
type bearer struct {
	key     string
	overTLS bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.key}, nil
}

func (b bearer) RequireTransportSecurity() bool { return b.overTLS }

// eventName returns the name of a response's event, as in the proto; empty for an event that this program does not know.
func eventName(response *orchestratorv1.AskResponse) string {
	message := response.ProtoReflect()
	field := message.WhichOneof(message.Descriptor().Oneofs().ByName("event"))
	if field == nil {
		return ""
	}
	return string(field.Name())
}

// failure is an error of a mesh with its details read.
type failure struct {
	Code         string `json:"code"`           // code of gRPC, such as NotFound
	Reason       string `json:"reason"`         // machine-readable reason, such as NOT_FOUND; empty if a mesh did not send the error
	Field        string `json:"field"`          // path of the field at fault; empty if none is
	RetryAfterMs int64  `json:"retry_after_ms"` // time after which a retry may succeed; -1 if it does not help
	Message      string `json:"message"`        // one line for a person
}

// failureOf reads the details (google.rpc) of the error of a call.
func failureOf(err error) failure {
	state := status.Convert(err)
	read := failure{Code: state.Code().String(), Message: state.Message(), RetryAfterMs: -1}
	for _, detail := range state.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			read.Reason = detail.Reason
		case *errdetails.BadRequest:
			if len(detail.FieldViolations) > 0 {
				read.Field = detail.FieldViolations[0].Field
			}
		case *errdetails.RetryInfo:
			read.RetryAfterMs = detail.RetryDelay.Seconds*1000 + int64(detail.RetryDelay.Nanos)/1_000_000
		}
	}
	return read
}

func printJSON(value interface{}) {
	if err := json.NewEncoder(os.Stdout).Encode(value); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
