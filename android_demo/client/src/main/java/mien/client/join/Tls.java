package mien.client.join;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.Principal;
import java.security.PrivateKey;
import java.security.cert.CertificateException;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import javax.net.ssl.KeyManager;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509ExtendedKeyManager;
import javax.net.ssl.X509TrustManager;
import mien.client.ErrorCode;
import mien.client.MienException;

/** TLS 1.3 that trusts one authority only, with this device's certificate where it has one. */
final class Tls {
    static final String[] PROTOCOLS = {"TLSv1.3"};
    static final String[] CIPHERS = {
        "TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"
    };

    /** Longest silence of a server that is asked to show itself. */
    private static final int HANDSHAKE_MS = 10_000;

    /** Times that silence, which a handshake on a slow network may take as a whole. */
    private static final int SILENCES = 2;

    private Tls() {}

    /** Returns sockets that trust {@code authority} alone; mutual where {@code identity} is not null. */
    static SSLSocketFactory sockets(X509Certificate authority, Identity identity) {
        try {
            KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
            trusted.load(null, null);
            trusted.setCertificateEntry("authority", authority);
            TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(trusted);
            KeyManager[] own = identity == null ? null : new KeyManager[] {new OwnKey(identity)};
            return context(own, trust.getTrustManagers());
        } catch (GeneralSecurityException | IOException error) {
            throw new IllegalStateException("every Java can trust a certificate", error);
        }
    }

    /**
     * Returns the certificates that whoever listens at an address shows, leaf first; nothing is verified and nothing is
     * sent. Throws UNREACHABLE when nobody answers or what answers does not speak TLS 1.3.
     */
    static List<X509Certificate> unverifiedChain(Address address) {
        return unverifiedChain(address, HANDSHAKE_MS);
    }

    /**
     * As {@link #unverifiedChain(Address)}; a silence has so long, and the handshake as a whole {@link #SILENCES} times that:
     * whoever drips would keep a device for ever.
     */
    static List<X509Certificate> unverifiedChain(Address address, int silenceMs) {
        List<X509Certificate> shown = new ArrayList<>();
        X509TrustManager notes =
                new X509TrustManager() {
                    @Override
                    public void checkClientTrusted(X509Certificate[] chain, String type) throws CertificateException {
                        throw new CertificateException("this is a client");
                    }

                    @Override
                    public void checkServerTrusted(X509Certificate[] chain, String type) {
                        shown.addAll(Arrays.asList(chain));
                    }

                    @Override
                    public X509Certificate[] getAcceptedIssuers() {
                        return new X509Certificate[0];
                    }
                };
        try (Socket raw = new Socket()) {
            raw.connect(new InetSocketAddress(address.host, address.port), silenceMs);
            raw.setSoTimeout(silenceMs);
            SSLSocketFactory factory = context(null, new TrustManager[] {notes});
            Thread end = closing(raw, SILENCES * silenceMs);
            try (SSLSocket socket = (SSLSocket) factory.createSocket(raw, address.host, address.port, false)) {
                socket.startHandshake();
            } finally {
                end.interrupt();
            }
        } catch (IOException error) {
            // A server that wants a client certificate may end the connection after it has shown its own.
            if (shown.isEmpty()) {
                throw new MienException(
                        ErrorCode.UNREACHABLE,
                        address + " does not answer with TLS 1.3; check address and network, retry",
                        error);
            }
        }
        return shown;
    }

    /** Returns what closes a connection after a time, unless it is interrupted. */
    private static Thread closing(Socket raw, int afterMs) {
        Thread end =
                new Thread(
                        () -> {
                            try {
                                Thread.sleep(afterMs);
                                raw.close();
                            } catch (InterruptedException | IOException over) {
                                return; // it ended by itself, or is closed
                            }
                        },
                        "mien-handshake-end");
        end.setDaemon(true);
        end.start();
        return end;
    }

    private static SSLSocketFactory context(KeyManager[] own, TrustManager[] trust) {
        try {
            SSLContext context = SSLContext.getInstance("TLSv1.3");
            context.init(own, trust, null);
            return new Newest(context.getSocketFactory());
        } catch (GeneralSecurityException error) {
            throw new MienException(
                    ErrorCode.VERSION, "this phone's system has no TLS 1.3 (Android 10 has); update it", error);
        }
    }

    /** Hands out sockets that speak TLS 1.3 and nothing older. */
    private static final class Newest extends SSLSocketFactory {
        private final SSLSocketFactory sockets;

        Newest(SSLSocketFactory sockets) {
            this.sockets = sockets;
        }

        private static Socket newest(Socket socket) {
            ((SSLSocket) socket).setEnabledProtocols(PROTOCOLS);
            return socket;
        }

        @Override
        public Socket createSocket(Socket socket, String host, int port, boolean autoClose) throws IOException {
            return newest(sockets.createSocket(socket, host, port, autoClose));
        }

        @Override
        public Socket createSocket(String host, int port) throws IOException {
            return newest(sockets.createSocket(host, port));
        }

        @Override
        public Socket createSocket(String host, int port, InetAddress from, int fromPort) throws IOException {
            return newest(sockets.createSocket(host, port, from, fromPort));
        }

        @Override
        public Socket createSocket(InetAddress host, int port) throws IOException {
            return newest(sockets.createSocket(host, port));
        }

        @Override
        public Socket createSocket(InetAddress host, int port, InetAddress from, int fromPort) throws IOException {
            return newest(sockets.createSocket(host, port, from, fromPort));
        }

        @Override
        public String[] getDefaultCipherSuites() {
            return sockets.getDefaultCipherSuites();
        }

        @Override
        public String[] getSupportedCipherSuites() {
            return sockets.getSupportedCipherSuites();
        }
    }

    /** This device's certificate, with a key that may live in hardware. */
    private static final class OwnKey extends X509ExtendedKeyManager {
        private static final String ALIAS = "device";
        private final Identity identity;

        OwnKey(Identity identity) {
            this.identity = identity;
        }

        @Override
        public String[] getClientAliases(String keyType, Principal[] issuers) {
            return new String[] {ALIAS};
        }

        @Override
        public String chooseClientAlias(String[] keyTypes, Principal[] issuers, Socket socket) {
            return ALIAS;
        }

        @Override
        public String chooseEngineClientAlias(String[] keyTypes, Principal[] issuers, SSLEngine engine) {
            return ALIAS;
        }

        @Override
        public X509Certificate[] getCertificateChain(String alias) {
            return new X509Certificate[] {identity.certificate, identity.registrarCa};
        }

        @Override
        public PrivateKey getPrivateKey(String alias) {
            return identity.key.getPrivate();
        }

        @Override
        public String[] getServerAliases(String keyType, Principal[] issuers) {
            return new String[0];
        }

        @Override
        public String chooseServerAlias(String keyType, Principal[] issuers, Socket socket) {
            return null;
        }
    }
}
