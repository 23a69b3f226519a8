import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * A segstore server for the tests of a class: a process that is steered over its HTTP API. Java 11 or newer, JUnit 5.
 *
 * <p>Register it in a static field with {@code @RegisterExtension}. Each test begins with the data of
 * {@link #snapshot()}, or with an empty server. When a test fails, the latest requests are printed.
 */
public final class SegstoreExtension
        implements BeforeAllCallback, BeforeEachCallback, AfterEachCallback, AfterAllCallback {
    private static final String SNAPSHOT = "/v1/snapshots/before-each";

    private final HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private final List<String> command = new ArrayList<>();
    private Process process;
    private String announced;
    private boolean taken;

    /** The executable is {@code segstore}, or what the environment variable SEGSTORE names. options: of `serve`. */
    public SegstoreExtension(String... options) {
        command.add(System.getenv().getOrDefault("SEGSTORE", "segstore"));
        command.addAll(List.of("serve", "--port", "0", "--controller-port", "0", "--http-port", "0"));
        command.addAll(List.of("--announce", "json"));
        command.addAll(List.of(options));
    }

    @Override
    public void beforeAll(ExtensionContext context) throws IOException {
        process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        Runtime.getRuntime().addShutdownHook(new Thread(process::destroy));
        announced = new BufferedReader(new InputStreamReader(process.getInputStream())).readLine();
        if (announced == null) {
            throw new IOException(command + " ended before it listened");
        }
    }

    @Override
    public void beforeEach(ExtensionContext context) {
        post(taken ? SNAPSHOT + "/restore" : "/v1/reset", "");
    }

    @Override
    public void afterEach(ExtensionContext context) {
        if (context.getExecutionException().isPresent()) {
            System.err.println("the latest requests: " + get("/v1/requests?limit=20"));
        }
    }

    @Override
    public void afterAll(ExtensionContext context) throws InterruptedException {
        process.destroy();
        if (!process.waitFor(10, TimeUnit.SECONDS)) {
            process.destroyForcibly();
        }
    }

    /** The controller's URI, for a client. */
    public URI controllerUri() {
        return URI.create("tcp://" + address("controller"));
    }

    /** Takes a snapshot, with which each test begins from now on. */
    public void snapshot() {
        put(SNAPSHOT, "");
        taken = true;
    }

    /** Waits until as many requests match a filter and were applied. */
    public void waitFor(String match, int count) {
        get("/v1/requests/wait?timeout_s=10&count=" + count + "&match=" + encoded(match));
    }

    /** Verifies the number of requests that match a filter. */
    public void verify(String match, int exactly) {
        get("/v1/requests/verify?exactly=" + exactly + "&match=" + encoded(match));
    }

    public String get(String path) {
        return request("GET", path, "");
    }

    public String put(String path, String json) {
        return request("PUT", path, json);
    }

    public String post(String path, String json) {
        return request("POST", path, json);
    }

    public String delete(String path) {
        return request("DELETE", path, "");
    }

    /** Returns the answer's body. Throws AssertionError with the server's sentence if it refuses. */
    public String request(String method, String path, String json) {
        HttpRequest.BodyPublisher body =
                json.isEmpty() ? HttpRequest.BodyPublishers.noBody() : HttpRequest.BodyPublishers.ofString(json);
        HttpRequest request = HttpRequest.newBuilder(URI.create("http://" + address("http") + path))
                .method(method, body)
                .header("content-type", "application/json")
                .build();
        try {
            HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
            if (answer.statusCode() >= 400) {
                throw new AssertionError(method + " " + path + ": " + answer.body());
            }
            return answer.body();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(error);
        }
    }

    private String address(String part) {
        Matcher found = Pattern.compile("\"" + part + "\": \"([^\"]+)\"").matcher(announced);
        if (!found.find()) {
            throw new IllegalStateException("no " + part + " in " + announced);
        }
        return found.group(1);
    }

    private static String encoded(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8);
    }
}
