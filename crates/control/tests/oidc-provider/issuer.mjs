// An OIDC issuer that is not ours, for tests: any address signs in with any password. Prints where it listens.
// Run with the folder that holds node_modules as the only argument.

import { createRequire } from 'node:module';
import { createServer } from 'node:http';
import { pathToFileURL } from 'node:url';
import path from 'node:path';

const require = createRequire(path.join(process.argv[2], 'package.json'));
const { default: Provider } = await import(pathToFileURL(require.resolve('oidc-provider')));

const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const claims = (sub) => ({ sub, email: sub, email_verified: true, name: 'From outside' });
  const provider = new Provider(issuer, {
    clients: [{
      client_id: 'gpuaas-cli',
      application_type: 'native',
      token_endpoint_auth_method: 'none',
      redirect_uris: ['http://127.0.0.1/callback'],
      grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'],
      response_types: ['code'],
    }],
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name'] },
    findAccount: (ctx, sub) => ({ accountId: sub, claims: () => claims(sub) }),
    extraTokenClaims: (ctx, token) => claims(token.accountId),
    issueRefreshToken: () => true,
    ttl: { AccessToken: 600, IdToken: 600, Session: 3600, Grant: 3600, Interaction: 600, RefreshToken: 3600, AuthorizationCode: 60 },
    features: {
      devInteractions: { enabled: true },
      deviceFlow: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => 'urn:gpuaas',
        useGrantedResource: () => true,
        getResourceServerInfo: () => ({ scope: 'openid email profile', audience: 'gpuaas', accessTokenFormat: 'jwt', accessTokenTTL: 600 }),
      },
    },
  });
  server.on('request', provider.callback());
  console.log(`ready ${issuer}`);
});
